use std::ops::Range;

use linux::fake::FakeKernel;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const SERVER: Pid = Pid(i32::MAX);
const WORKER: Pid = Pid(i32::MAX - 1);

fn insertion(process: Pid, device: (u32, u32), pages: Range<u64>) -> Insertion {
    Insertion { file: FileId { device, inode: 12, generation: 0 }, pages, process }
}

fn inserter(pid: Pid) -> Option<Inserter> {
    Some(Inserter { name: "server".into(), of_kernel: pid == WORKER, start_ns: 1 })
}

fn kernel(mounts: &str) -> (FakeKernel, FileSystems) {
    let kernel = FakeKernel::new().file("proc/self/mountinfo", mounts);
    let systems = FileSystems::read(&kernel).unwrap();
    (kernel, systems)
}

#[test]
fn a_fuse_server_of_a_file_system_that_a_stream_reads_is_a_layer_and_another_is_not() {
    let (kernel, systems) = kernel("30 1 0:45 / /mnt rw - fuse.bindfs /srv rw\n");
    let kernel = kernel.file(&SERVER.file("fdinfo/4"), "pos:\t0\nfuse_connection:\t45\n");
    let mut layers = Layers::default();
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..10), insertion(Pid(3), (8, 1), 0..5)], inserter);
    assert_eq!(layers.claimed(&kernel, &systems, Duration::ZERO), [], "nobody reads that file system");
    layers.note(&kernel, &systems, (0, 45), Pid(2), SECOND / 10);
    let claimed = layers.claimed(&kernel, &systems, SECOND / 10);
    assert_eq!(claimed, [insertion(SERVER, (8, 1), 0..10)]);
    layers.add(SECOND, vec![insertion(SERVER, (8, 1), 10..20)], inserter);
    assert_eq!(layers.claimed(&kernel, &systems, SECOND).len(), 1, "and all that it inserts from then on");
}

#[test]
fn what_a_server_inserted_long_before_is_its_own() {
    let (kernel, systems) = kernel("30 1 0:45 / /mnt rw - fuse.bindfs /srv rw\n");
    let kernel = kernel.file(&SERVER.file("fdinfo/4"), "fuse_connection:\t45\n");
    let mut layers = Layers::default();
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..10)], inserter);
    assert_eq!(layers.claimed(&kernel, &systems, SECOND * 2), []);
    layers.note(&kernel, &systems, (0, 45), Pid(2), SECOND * 2);
    assert_eq!(layers.claimed(&kernel, &systems, SECOND * 2), []);
}

#[test]
fn a_kernel_worker_counts_for_the_backing_file_alone_and_a_program_that_reads_it_does_not() {
    let (kernel, systems) = kernel("");
    let mut layers = Layers::default();
    layers.backing.insert(BackingFile { device: (8, 1), inode: 12, block_device: None });
    let other = Insertion {
        file: FileId { inode: 13, ..insertion(WORKER, (8, 1), 0..1).file },
        ..insertion(WORKER, (8, 1), 0..1)
    };
    layers.add(
        Duration::ZERO,
        vec![insertion(WORKER, (8, 1), 0..9), other, insertion(Pid(3), (8, 1), 9..12)],
        inserter,
    );
    assert_eq!(layers.claimed(&kernel, &systems, Duration::ZERO), [insertion(WORKER, (8, 1), 0..9)]);
}

#[test]
fn a_loop_device_on_a_device_has_the_devices_own_pages() {
    let backing = BackingFile { device: (0, 6), inode: 99, block_device: Some((7, 1)) };
    let file = |device, inode| FileId { device, inode, generation: 0 };
    assert!(is_same(&backing, file((0, 3), 7 << 20 | 1)));
    assert!(!is_same(&backing, file((0, 6), 99)));
    let on_btrfs = BackingFile { device: (0, 70), inode: 257, block_device: None };
    assert!(is_same(&on_btrfs, file((0, 41), 257)));
    let on_ext4 = BackingFile { device: (8, 1), inode: 12, block_device: None };
    assert!(!is_same(&on_ext4, file((8, 2), 12)));
}

#[test]
fn a_large_server_is_named_with_what_it_inserted_and_a_small_one_is_not() {
    let (kernel, systems) = kernel("");
    let mut layers = Layers::default();
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..5000), insertion(Pid(3), (8, 1), 0..4000)], inserter);
    layers.look_at_large(&kernel);
    assert_eq!(layers.claimed(&kernel, &systems, Duration::ZERO), []);
    let named = layers.largest();
    let [named] = &named[..] else { panic!("{named:?}") };
    assert_eq!((named.pid, named.pages, named.first), (SERVER, Pages(5000), Some(SERVER)));
}

#[test]
fn many_processes_do_not_hide_a_large_one() {
    let mut layers = Layers::default();
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..5000)], inserter);
    for pid in 2..5000 {
        layers.add(Duration::ZERO, vec![insertion(Pid(pid), (8, 1), 0..1)], inserter);
    }
    assert!(layers.others.len() <= OTHERS_MOST);
    assert_eq!(layers.largest().len(), 1);
    assert!(layers.recent.len() <= RECENT_MOST);
}
