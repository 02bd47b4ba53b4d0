use proptest::prelude::*;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;

/// Linux 6.18 with its default settings.
fn kernel() -> FakeKernel {
    let files = [
        ("enabled", "always [madvise] never\n"),
        ("defrag", "always defer defer+madvise [madvise] never\n"),
        ("shmem_enabled", "always within_size advise [never] deny force\n"),
        ("use_zero_page", "1\n"),
        ("hpage_pmd_size", "2097152\n"),
        ("shrink_underused", "1\n"),
        ("hugepages-2048kB/enabled", "always [inherit] madvise never\n"),
        ("hugepages-64kB/enabled", "always inherit madvise [never]\n"),
        ("hugepages-8kB/shmem_enabled", "always inherit within_size advise [never]\n"),
        ("khugepaged/defrag", "1\n"),
        ("khugepaged/pages_to_scan", "4096\n"),
        ("khugepaged/scan_sleep_millisecs", "10000\n"),
        ("khugepaged/alloc_sleep_millisecs", "60000\n"),
        ("khugepaged/max_ptes_none", "511\n"),
        ("khugepaged/max_ptes_swap", "64\n"),
        ("khugepaged/max_ptes_shared", "256\n"),
        ("khugepaged/pages_collapsed", "12\n"),
        ("khugepaged/full_scans", "3\n"),
    ];
    files.iter().fold(FakeKernel::new(), |kernel, (name, text)| kernel.file(&format!("{ROOT}/{name}"), text))
}

#[test]
fn the_settings_are_read_with_their_units() {
    let settings = settings(&kernel()).unwrap();
    assert_eq!(settings.enabled, Enabled::Madvise);
    assert_eq!(settings.defrag, Defrag::Madvise);
    assert_eq!(settings.shmem_enabled, Some(ShmemEnabled::Never));
    assert!(settings.use_zero_page);
    assert_eq!(settings.pmd_bytes, Bytes::mib(2));
    let sizes: Vec<_> = settings.sizes.iter().map(|size| (size.bytes, size.enabled)).collect();
    let expected = [
        (Bytes::kib(8), None),
        (Bytes::kib(64), Some(SizeEnabled::Never)),
        (Bytes::mib(2), Some(SizeEnabled::Inherit)),
    ];
    assert_eq!(sizes, expected);
}

#[test]
fn khugepaged_is_read_with_its_units() {
    let khugepaged = khugepaged(&kernel()).unwrap();
    assert_eq!((khugepaged.scan_sleep, khugepaged.alloc_sleep), (Duration::from_secs(10), Duration::from_secs(60)));
    assert_eq!((khugepaged.max_ptes_none, khugepaged.max_ptes_swap), (511, 64));
    assert_eq!(khugepaged.max_ptes_shared, Some(256));
    assert_eq!((khugepaged.pages_collapsed, khugepaged.full_scans), (12, 3));
    assert_eq!((khugepaged.defrag, khugepaged.pages_to_scan), (true, 4096));
}

#[test]
fn setting_writes_the_word_and_nothing_else() {
    let kernel = kernel();
    for to in [Enabled::Always, Enabled::Madvise, Enabled::Never] {
        set_enabled(&kernel, to).unwrap();
    }
    let path = "sys/kernel/mm/transparent_hugepage/enabled";
    assert_eq!(kernel.writes(), ["always", "madvise", "never"].map(|word| format!("{path} <- {word}")));
}

#[test]
fn a_kernel_without_huge_pages_is_unsupported() {
    let kernel = FakeKernel::new();
    assert!(matches!(enabled(&kernel), Err(Error::Unsupported(_))));
    assert!(matches!(settings(&kernel), Err(Error::Unsupported(_))));
    assert!(matches!(khugepaged(&kernel), Err(Error::Unsupported(_))));
    assert!(matches!(set_enabled(&kernel, Enabled::Never), Err(Error::Unsupported(_))));
}

#[test]
fn an_older_kernel_lacks_the_sizes_and_the_shared_limit() {
    let files = [
        ("enabled", "[always] madvise never\n"),
        ("defrag", "always defer defer+madvise [madvise] never\n"),
        ("use_zero_page", "0\n"),
        ("hpage_pmd_size", "2097152\n"),
    ];
    let kernel =
        files.iter().fold(FakeKernel::new(), |kernel, (name, text)| kernel.file(&format!("{ROOT}/{name}"), text));
    let settings = settings(&kernel).unwrap();
    assert_eq!((settings.enabled, settings.shmem_enabled, settings.sizes), (Enabled::Always, None, vec![]));
}

#[test]
fn malformed_text_is_named() {
    let kernel = FakeKernel::new().file(ENABLED, "1\n");
    let error = enabled(&kernel).unwrap_err();
    let expected = "cannot understand /sys/kernel/mm/transparent_hugepage/enabled: \"1\", \
        expected one in brackets of always, madvise, never";
    assert_eq!(error.to_string(), expected);
    let kernel = self::kernel().file(&format!("{ROOT}/khugepaged/max_ptes_none"), "none\n");
    assert!(matches!(khugepaged(&kernel), Err(Error::Malformed { .. })));
}

#[test]
fn files_of_a_newer_kernel_are_left_out() {
    let newer = kernel()
        .file(&format!("{ROOT}/something_new"), "1\n")
        .file(&format!("{ROOT}/hugepages-allkB/enabled"), "[never]\n")
        .file(&format!("{ROOT}/khugepaged/new"), "x\n")
        .file(ENABLED, "always [madvise] never sometimes\n");
    assert_eq!(settings(&newer), settings(&kernel()));
    assert_eq!(khugepaged(&newer), khugepaged(&kernel()));
}

#[test]
fn this_host_is_understood_if_it_has_huge_pages() {
    match settings(&Rooted::host()) {
        Ok(settings) => assert_eq!(settings.pmd_bytes.0 % 4096, 0),
        Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
    }
    match khugepaged(&Rooted::host()) {
        Ok(khugepaged) => assert!(khugepaged.max_ptes_none < 512),
        Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in ".{0,60}") {
        let _ = enabled(&FakeKernel::new().file(ENABLED, &text));
    }
}
