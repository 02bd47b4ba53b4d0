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
    Some(Inserter { name: "server".into(), of_kernel: pid == WORKER, start_ns: 1, parent: None })
}

fn kernel(mounts: &str) -> (FakeKernel, FileSystems) {
    let kernel = FakeKernel::new().file("proc/self/mountinfo", mounts);
    let systems = FileSystems::read(&kernel).unwrap();
    (kernel, systems)
}

#[test]
fn a_fuse_server_of_a_file_system_that_a_stream_reads_is_a_layer_and_another_is_not() {
    let (kernel, mut systems) = kernel("30 1 0:45 / /mnt rw - fuse.bindfs /srv rw\n");
    let kernel = kernel.file(&SERVER.file("fdinfo/4"), "pos:\t0\nfuse_connection:\t45\n");
    let mut layers = Layers::default();
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..10), insertion(Pid(3), (8, 1), 0..5)], inserter);
    assert_eq!(layers.claimed(&kernel, &systems, Duration::ZERO), [], "nobody reads that file system");
    layers.note(&kernel, &mut systems, (0, 45), Pid(2), SECOND / 10);
    let claimed = layers.claimed(&kernel, &systems, SECOND / 10);
    assert_eq!(claimed, [insertion(SERVER, (8, 1), 0..10)]);
    layers.add(SECOND, vec![insertion(SERVER, (8, 1), 10..20)], inserter);
    assert_eq!(layers.claimed(&kernel, &systems, SECOND).len(), 1, "and all that it inserts from then on");
}

#[test]
fn what_a_server_inserted_long_before_is_its_own() {
    let (kernel, mut systems) = kernel("30 1 0:45 / /mnt rw - fuse.bindfs /srv rw\n");
    let kernel = kernel.file(&SERVER.file("fdinfo/4"), "fuse_connection:\t45\n");
    let mut layers = Layers::default();
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..10)], inserter);
    assert_eq!(layers.claimed(&kernel, &systems, SECOND * 2), []);
    layers.note(&kernel, &mut systems, (0, 45), Pid(2), SECOND * 2);
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
fn a_large_server_is_named_if_it_is_connected_and_the_others_are_one_amount() {
    let (kernel, mut systems) = kernel("");
    let mut layers = Layers::default();
    let elsewhere = insertion(Pid(4), (8, 2), 0..9000);
    layers.note(&kernel, &mut systems, (8, 1), Pid(2), Duration::ZERO);
    let small = insertion(Pid(3), (8, 1), 0..4000);
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..5000), small, elsewhere], inserter);
    layers.look_at_large(&kernel, Vec::new, Duration::ZERO);
    assert_eq!(layers.claimed(&kernel, &systems, Duration::ZERO), []);
    assert_eq!((layers.largest(), layers.unconnected()), (vec![], (Pages(9000), 2)), "nobody is connected");
    layers.others.get_mut(&SERVER).unwrap().is_connected = true;
    layers.others.get_mut(&Pid(3)).unwrap().is_connected = true;
    let named = layers.largest();
    let [named] = &named[..] else { panic!("{named:?}") };
    assert_eq!((named.pid, named.pages, named.first), (SERVER, Pages(5000), Some(SERVER)));
    assert_eq!(layers.unconnected(), (Pages(0), 0), "the rest is on another device");
}

#[test]
fn a_thread_of_the_kernel_is_named_if_a_kernel_may_serve_a_file_system_of_the_streams() {
    let (kernel, mut systems) = kernel("30 1 0:45 / /mnt rw - nfs4 host:/srv rw\n");
    let mut layers = Layers::default();
    layers.note(&kernel, &mut systems, (8, 1), Pid(2), Duration::ZERO);
    layers.add(Duration::ZERO, vec![insertion(WORKER, (8, 1), 0..5000)], inserter);
    assert_eq!((layers.largest().len(), layers.unconnected().0), (0, Pages(5000)));
    layers.note(&kernel, &mut systems, (0, 45), Pid(2), Duration::ZERO);
    assert_eq!((layers.largest().len(), layers.unconnected().0), (1, Pages(0)));
}

#[test]
fn the_connections_of_a_process_are_looked_at_once_a_second_and_of_few_in_one_step() {
    let (kernel, _) = kernel("");
    let mut layers = Layers::default();
    let large = (1..=10).map(|n| insertion(Pid(i32::MAX - n), (8, 1), 0..5000)).collect();
    layers.add(Duration::ZERO, large, |_| {
        Some(Inserter { name: "a".into(), of_kernel: false, start_ns: 1, parent: None })
    });
    let looked_at = |layers: &Layers, at| layers.others.values().filter(|of| of.connections_at == Some(at)).count();
    layers.look_at_large(&kernel, Vec::new, Duration::ZERO);
    assert_eq!(looked_at(&layers, Duration::ZERO), LOOKED_AT_MOST);
    for step in 1..4 {
        layers.look_at_large(&kernel, Vec::new, SECOND / 10 * step);
    }
    assert_eq!(looked_at(&layers, SECOND / 10 * 3), 0, "all have had their look");
}

#[test]
fn many_processes_do_not_hide_a_large_one() {
    let mut layers = Layers::default();
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..5000)], inserter);
    for pid in 2..5000 {
        layers.add(Duration::ZERO, vec![insertion(Pid(pid), (8, 1), 0..1)], inserter);
    }
    assert!(layers.others.len() <= OTHERS_MOST);
    assert!(layers.others.contains_key(&SERVER));
    assert!(layers.recent.len() <= RECENT_MOST);
}

#[test]
fn a_process_that_has_ended_belongs_to_the_server_that_started_it() {
    let stat = |parent: i32| format!("9 (x) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n");
    let status = |name: &str| {
        format!(
            "Name:\t{name}\nState:\tS\nTgid:\t9\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nVmSize:\t 4 kB\nThreads:\t1\nCapEff:\t0\n"
        )
    };
    let (first, shell) = (Pid(i32::MAX - 10), Pid(i32::MAX - 11));
    let kernel = FakeKernel::new()
        .file(&first.file("stat"), &stat(shell.0))
        .file(&first.file("status"), &status("server"))
        .file(&shell.file("stat"), &stat(1))
        .file(&shell.file("status"), &status("sh"));
    let of = |parent| Inserter { parent, ..inserter(SERVER).unwrap() };
    assert_eq!(first_of_same_name(&kernel, SERVER, &of(Some(first))), first);
    assert_eq!(first_of_same_name(&kernel, SERVER, &of(Some(shell))), SERVER, "another program");
    assert_eq!(first_of_same_name(&kernel, SERVER, &of(None)), SERVER);
    let mut layers = Layers::default();
    let (_, mut systems) = self::kernel("");
    layers.note(&kernel, &mut systems, (8, 1), Pid(2), Duration::ZERO);
    layers.add(Duration::ZERO, vec![insertion(SERVER, (8, 1), 0..5000)], |_| Some(of(Some(first))));
    layers.look_at_large(&kernel, Vec::new, Duration::ZERO);
    assert_eq!(layers.unconnected(), (Pages(5000), 0), "its server was looked at");
}

#[test]
fn a_device_in_the_middle_of_its_mount_is_looked_up_again_soon() {
    let (kernel, mut systems) = kernel("");
    let kernel = kernel.file("sys/fs/btrfs/0a-1/devices/sda1/dev", "8:1\n");
    let mut layers = Layers::default();
    layers.note(&kernel, &mut systems, (0, 39), Pid(2), Duration::ZERO);
    assert!(layers.devices[&(0, 39)].is_of_program, "it may be one of a program");
    kernel.add("proc/self/mountinfo", "44 27 0:39 / /mnt rw - btrfs /dev/sda1 rw\n");
    layers.note(&kernel, &mut systems, (0, 39), Pid(2), LOOK_SOON / 2);
    assert!(layers.devices[&(0, 39)].is_of_program, "not so soon");
    layers.note(&kernel, &mut systems, (0, 39), Pid(2), LOOK_SOON);
    assert!(!layers.devices[&(0, 39)].is_of_program);
    assert_eq!(layers.devices[&(0, 39)].wait, LOOK_AGAIN);
    layers.note(&kernel, &mut systems, (0, 40), Pid(2), Duration::ZERO);
    layers.note(&kernel, &mut systems, (0, 40), Pid(2), LOOK_SOON);
    assert_eq!(layers.devices[&(0, 40)].wait, LOOK_SOON * 2);
}

#[test]
fn all_children_of_a_listener_that_the_streams_are_connected_to_are_one_server() {
    let (kernel, _) = kernel("");
    let mut layers = Layers::default();
    let of =
        |pid: Pid| Inserter { parent: Some(if pid == WORKER { Pid(3) } else { Pid(4) }), ..inserter(SERVER).unwrap() };
    let parts = [SERVER, Pid(i32::MAX - 2), WORKER].map(|pid| insertion(pid, (8, 1), 0..3000));
    layers.add(Duration::ZERO, parts.to_vec(), |pid| Some(of(pid)));
    layers.listeners.insert(Pid(4), "inetd".into());
    layers.look_at_large(&kernel, Vec::new, Duration::ZERO);
    let named = layers.largest();
    let [named] = &named[..] else { panic!("{named:?}") };
    assert_eq!((named.pid, named.pages, named.first), (Pid(4), Pages(6000), Some(Pid(4))));
    assert_eq!(named.name, "inetd");
}
