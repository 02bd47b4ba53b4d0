use procfs::process::{MMPermissions, MMapPath, Process};
use proptest::prelude::*;
use rustix::io::Errno;
use units::Bytes;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;

const RECORDED: [&str; 3] = [
    include_str!("../../../tests/recorded/6.1/maps"),
    include_str!("../../../tests/recorded/6.12/maps"),
    include_str!("../../../tests/recorded/6.18/maps"),
];

fn one(line: &str) -> Mapping {
    parse_line(line.as_bytes()).unwrap()
}

#[test]
fn the_recorded_processes_have_all_their_mappings() {
    for recorded in RECORDED {
        let kernel = FakeKernel::new().file("proc/42/maps", recorded);
        let all = maps(&kernel, Pid(42)).unwrap();
        assert_eq!(all.len(), recorded.lines().count());
        assert!(all.is_sorted_by_key(|mapping| mapping.range));
        let anonymous: Vec<_> = all.iter().filter(|mapping| mapping.is_anonymous()).map(|m| m.path.bytes()).collect();
        assert!([&b"[heap]"[..], b"[stack]", b""].iter().all(|name| anonymous.contains(name)));
        assert!(anonymous.iter().all(|path| !path.starts_with(b"[v") && !path.starts_with(b"/")));
        let big: Vec<_> = all.iter().filter(|mapping| mapping.range.bytes() == Bytes::mib(8)).collect();
        assert_eq!((big.len(), big[0].permissions.to_string().as_str()), (1, "rw-p"));
        let deleted: Vec<_> =
            all.iter().filter(|mapping| mapping.path.to_string().contains(r"spaces\\012and")).collect();
        assert_eq!(deleted.len(), 1);
        assert!(deleted[0].path.bytes().ends_with(b"a newline (deleted)") && !deleted[0].is_anonymous());
    }
}

#[test]
fn a_file_mapping_is_read_field_by_field() {
    let mapping = one("7f6dfc600000-7f6dfc601000 r-xs 0002a000 103:1f 247278                     /usr/bin/head");
    assert_eq!(mapping.range, AddressRange::new(0x7f6d_fc60_0000, 0x7f6d_fc60_1000).unwrap());
    assert_eq!(mapping.permissions, Permissions { read: true, write: false, execute: true, shared: true });
    assert_eq!((mapping.offset, mapping.device, mapping.inode), (0x2a000, (0x103, 0x1f), 247_278));
    assert_eq!(mapping.path, "/usr/bin/head");
    assert!(!mapping.is_anonymous());
}

#[test]
fn a_name_keeps_its_spaces_its_escaped_newline_and_its_end() {
    let path = r"/tmp/a name  with: spaces\012and a newline (deleted)";
    assert_eq!(one(&format!("1000-2000 rw-p 00000000 fe:00 5      {path}")).path, path);
}

#[test]
fn a_name_is_bytes_of_which_none_ends_the_line_or_is_lost() {
    let line =
        b"1000-2000 rw-p 00000000 fe:00 5      /tmp/a\xff\x1b[2J\r\x0b\xc2\x85b \r\n2000-3000 rw-p 00000000 00:00 0 \n";
    let all = parse(line, "maps").unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].path.bytes(), b"/tmp/a\xff\x1b[2J\r\x0b\xc2\x85b \r");
    let error = parse(b"1000-2000 rw-p 0 0:0 x /\x1b[2J\xff", "maps").unwrap_err().to_string();
    assert!(
        error.starts_with(r#"cannot understand maps line 1: "1000-2000 rw-p 0 0:0 x /\x1b[2J\xff", expected"#),
        "{error}"
    );
}

#[test]
fn only_private_memory_of_the_program_is_anonymous() {
    let named = |name: &str| one(&format!("1000-2000 rw-p 00000000 00:00 0    {name}")).is_anonymous();
    for ours in ["", "[heap]", "[stack]", "[stack:42]", "[anon:a name]"] {
        assert!(named(ours), "{ours}");
    }
    for kernels in ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"] {
        assert!(!named(kernels), "{kernels}");
    }
    assert!(!one("1000-2000 rw-s 00000000 00:01 25 /dev/zero (deleted)").is_anonymous());
    assert!(!one("1000-2000 rw-s 00000000 00:00 0 [anon_shmem:x]").is_anonymous());
}

#[test]
fn a_process_without_memory_has_no_mappings() {
    let kernel = FakeKernel::new().file("proc/42/maps", "");
    assert_eq!(maps(&kernel, Pid(42)), Ok(vec![]));
}

#[test]
fn a_process_that_ended_is_gone_and_a_foreign_one_denied() {
    let kernel = FakeKernel::new().refusing("proc/43/maps", Errno::ACCESS);
    assert!(maps(&kernel, Pid(42)).unwrap_err().is_gone());
    assert!(matches!(maps(&kernel, Pid(43)), Err(Error::Denied(_))));
}

#[test]
fn a_malformed_line_is_named() {
    for bad in [
        "",
        "hello",
        "2000-1000 rw-p 0 0:0 0",
        "1001-2000 rw-p 0 0:0 0",
        "1000-2000 rw-q 0 0:0 0",
        "1000-2000 rw-p 0 0:0",
    ] {
        assert_eq!(parse_line(bad.as_bytes()), None, "{bad}");
    }
    let error = parse("1000-2000 rw-p 00000000 00:00 0 \nhello", "/proc/42/maps").unwrap_err();
    assert!(
        error.to_string().starts_with("cannot understand /proc/42/maps line 2: \"hello\", expected a mapping"),
        "{error}"
    );
}

#[test]
fn a_name_that_a_newer_kernel_invents_is_kept() {
    let mapping = one("1000-2000 r--p 00000000 00:00 0    [something new]");
    assert_eq!(mapping.path, "[something new]");
    assert!(!mapping.is_anonymous());
}

#[test]
fn procfs_sees_the_same() {
    let quiet = QuietProcess::start();
    let ours = maps(&Rooted::host(), quiet.pid()).unwrap();
    let theirs = Process::new(quiet.pid().0).unwrap().maps().unwrap();
    assert_eq!(ours.len(), theirs.0.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!((ours.range.start().0, ours.range.end().0), theirs.address);
        let has = |flag| theirs.perms.contains(flag);
        let permissions = Permissions {
            read: has(MMPermissions::READ),
            write: has(MMPermissions::WRITE),
            execute: has(MMPermissions::EXECUTE),
            shared: has(MMPermissions::SHARED),
        };
        assert_eq!(ours.permissions, permissions);
        assert_eq!((ours.offset, ours.inode), (theirs.offset, theirs.inode));
        let device = (i32::try_from(ours.device.0).unwrap(), i32::try_from(ours.device.1).unwrap());
        assert_eq!(device, theirs.dev);
        assert_eq!(MMapPath::from(str::from_utf8(ours.path.bytes()).unwrap()).unwrap(), theirs.pathname);
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,200}") {
        let _ = parse(&text, "x");
    }

    #[test]
    fn any_line_like_a_mapping_is_read_or_refused_without_a_panic(
        line in "[0-9a-f]{0,17}-[0-9a-f]{0,17} [rwxsp-]{3,5} [0-9a-f]{0,17} [0-9a-f]{1,9}:[0-9a-f]{1,9} [0-9]{1,21} ?.{0,20}"
    ) {
        let _ = parse(&line, "x");
    }

    #[test]
    fn what_the_kernel_would_print_is_read_back(
        start in 0u64..1 << 35, pages in 0u64..1 << 16, bits in prop::array::uniform4(any::<bool>()),
        offset: u64, device in (0u32..1 << 12, 0u32..1 << 20), inode: u64, path in "(/[ -~]{0,40})?",
    ) {
        let range = AddressRange::new(start * 4096, (start + pages) * 4096).unwrap();
        let [read, write, execute, shared] = bits;
        let permissions = Permissions { read, write, execute, shared };
        let line = format!("{range} {permissions} {offset:08x} {:02x}:{:02x} {inode} {path:>30}", device.0, device.1);
        prop_assert_eq!(one(&line), Mapping { range, permissions, offset, device, inode, path: path.into() });
    }
}
