use proptest::prelude::*;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;

const OWN: &str = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
    30 22 254:0 /srv /mnt/with\\040space rw - ext4 /dev/vda rw\n\
    31 22 0:44 / /run rw - tmpfs tmpfs rw\nnonsense\n32 22 x:y / /z rw\n\
    40 22 0:50 / /home/u/mnt rw,nosuid - fuse.evil evil rw,user_id=4001\n\
    41 22 7:3 / /snap/x ro - squashfs /dev/loop3 ro\n\
    42 22 0:60 / /var/lib/c/merged rw - overlay overlay rw,lowerdir=/var/l/A:/var/l/B,upperdir=/run/u,workdir=/run/w\n\
    43 22 0:61 / /o1 rw - overlay overlay rw,lowerdir=/home/u/mnt/layer,upperdir=/run/u,workdir=/run/w\n\
    44 22 0:62 / /o2 rw - overlay overlay rw,lowerdir=l/X:/var/l/A\n\
    45 22 0:63 / /o3 rw - overlay overlay rw,lowerdir+=/var/l/A,lowerdir+=/home/u/mnt/x\n\
    46 22 0:64 / /o4 rw - overlay overlay rw,lowerdir=/var/../home/u/mnt\n";

fn own() -> Mounts {
    let files = FakeKernel::new().file("proc/self/mountinfo", OWN);
    Mounts { internal: [(7, "tmpfs")].into(), ..Mounts::read(&files).unwrap() }
}

fn of_mount(id: u64) -> (String, bool) {
    // A process that does not exist: no other table is found.
    let found = own().of_mount(&FakeKernel::new(), Pid(i32::MAX), id);
    (found.kind, found.is_local)
}

#[test]
fn disks_and_memory_are_local_and_what_a_program_or_a_loop_device_serves_is_not() {
    for (id, kind, is_local) in [
        (22, "ext4", true),
        (30, "ext4", true),
        (31, "tmpfs", true),
        (7, "tmpfs", true),
        (40, "fuse.evil", false),
        (41, "squashfs", false),
        (99, UNKNOWN, false),
    ] {
        assert_eq!(of_mount(id), (kind.to_owned(), is_local), "{id}");
    }
}

#[test]
fn an_overlay_is_as_local_as_its_layers() {
    for (id, is_local) in [(42, true), (43, false), (44, false), (45, false), (46, false)] {
        assert_eq!(of_mount(id), ("overlay".to_owned(), is_local), "{id}");
    }
}

#[test]
fn an_overlay_of_another_namespace_is_local_only_where_we_see_it_mounted_too() {
    let ours = Table(OWN.lines().filter_map(parse).collect());
    let theirs = |device: &str| {
        parse(&format!("90 80 {device} / / rw - overlay overlay rw,lowerdir=/lies,upperdir=/lies")).unwrap()
    };
    assert!(ours.is_local(&theirs("0:60")));
    assert!(!ours.is_local(&theirs("0:61")));
    assert!(!ours.is_local(&theirs("0:99")));
}

#[test]
fn an_overlay_that_is_our_own_root_is_local() {
    let ours =
        Table(vec![parse("22 1 0:30 / / rw - overlay overlay rw,lowerdir=/names/of/another/namespace").unwrap()]);
    assert!(ours.is_local(&ours.0[0]));
}

#[test]
fn an_overlay_on_itself_is_not_local_and_ends() {
    let ours = Table(vec![parse("22 1 0:30 / /o rw - overlay overlay rw,lowerdir=/o/x").unwrap()]);
    assert!(!ours.is_local(&ours.0[0]));
}

#[test]
fn the_first_mount_of_a_device_is_taken_and_nonsense_left_out() {
    let table = own().own;
    assert_eq!(table.of_device((254, 0)).map(|mount| mount.point.as_str()), Some("/"));
    assert_eq!(table.of_device((0, 44)).map(|mount| mount.point.as_str()), Some("/run"));
    assert_eq!(table.0.iter().find(|mount| mount.id == 30).unwrap().point, "/mnt/with space");
    assert_eq!(table.0.len(), 10);
    assert!(Mounts::read(&FakeKernel::new()).is_err());
}

#[test]
fn a_mount_that_lies_over_another_is_that_of_the_paths_below_it() {
    let table = own().own;
    for (path, id) in [("/", 22), ("/home/u/mnt", 40), ("/home/u/mnt/x", 40), ("/home/u/mntx", 22), ("/running", 22)] {
        assert_eq!(table.of_path(path).map(|mount| mount.id), Some(id), "{path}");
    }
}

#[test]
fn a_mount_that_a_chrooted_process_does_not_reach_is_found_through_the_next_process_of_its_namespace() {
    let files = FakeKernel::new()
        .file("proc/1/mountinfo", OWN)
        .file("proc/7/mountinfo", "31 22 0:44 / / rw - tmpfs tmpfs rw\n")
        .file("proc/8/mountinfo", OWN);
    let find = |of: &mut Namespace, pids: &[i32], most, id| {
        of.find(&files, pids.iter().copied().map(Pid), most, |table| table.by_id(id)).map(|mount| mount.kind.clone())
    };
    let mut of = Namespace::default();
    assert_eq!(find(&mut of, &[9], 8, 31), None, "a process that has ended is not counted");
    assert_eq!(find(&mut of, &[7], 8, 31).as_deref(), Some("tmpfs"));
    assert_eq!(find(&mut of, &[7], 8, 22), None);
    assert_eq!(find(&mut of, &[8], 1, 22), None, "no more tables than there may be");
    assert_eq!(find(&mut of, &[8], 8, 22).as_deref(), Some("ext4"));
    assert_eq!((of.table.0.len(), of.read.len()), (10, 2), "each mount is kept once");
    let mut of = Namespace::default();
    assert_eq!(find(&mut of, &[1, 7], 8, 22).as_deref(), Some("ext4"));
    assert_eq!(of.read, [Pid(1)].into(), "nothing more is read after a hit");
}

#[test]
fn memory_without_a_name_is_local() {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    let found =
        Mounts::read(&Rooted::host()).unwrap().of_mount(&Rooted::host(), Pid::own(), mount_of(&memory).unwrap());
    assert_eq!(found, FileSystem { kind: "tmpfs".to_owned(), is_local: true });
}

proptest! {
    #[test]
    fn any_line_is_read_without_a_panic_and_what_is_local_is_of_a_kind_in_the_list(
        kind in "[a-z0-9.]{0,12}|overlay|ext4", major in 0u32..300, options in ".{0,40}", point in "/[a-z/]{0,12}",
    ) {
        let line = format!("1 0 {major}:1 / {point} rw - {kind} source {options}");
        if let Some(mount) = parse(&line) {
            let table = Table(vec![mount.clone()]);
            let may = LOCAL.contains(&mount.kind.as_str()) && !SERVED_DEVICES.contains(&mount.device.0);
            prop_assert_eq!(table.is_local(&mount), may || mount.kind == "overlay" && mount.point == "/");
        }
    }
}
