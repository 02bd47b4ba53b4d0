//! Refaults of file pages, by the use of the file: counted by BPF.
//!
//! The kernel's own counts (`workingset_refault_file` in `/proc/vmstat` and `memory.stat`) are for files as a whole.
//! These distinguish executed, otherwise mapped, and unmapped file pages. In sum both are nearly the same: the kernel
//! leaves out pages that are written over, and counts a large folio as a whole when one of its pages was evicted.
//!
//! Counted from the moment of loading, which takes about 0.1 s: a page evicted before is unknown. While loaded, the
//! program takes a thousandth of the memory, at most 64 MiB, and some 0.1 µs for each page that leaves or enters.
//!
//! Since: Linux 6.1 with CONFIG_DEBUG_INFO_BTF.

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};
use linux::Pid;
use units::{Pages, cast};

use crate::backend::Unavailable;
use crate::bpf_object::{self, Aligned};
use crate::insertions::Filter;

/// Name in messages.
const PROGRAM: &str = "the program for refaults";

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../bpf/refaults.bpf.o"));

/// `enum refault_class`.
#[derive(Clone, Copy, Debug)]
enum Class {
    Code,
    ReadOnly,
    Cache,
}

/// `struct refault_filter`.
#[repr(C)]
struct FilterRecord {
    group: u64,
    all: u32,
    buckets_mask: u32,
}

/// Refaulted pages, since the program was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of files that are executed.
    pub code: Pages,
    /// Of files that are mapped otherwise.
    pub read_only: Pages,
    /// Of files that are not mapped.
    pub cache: Pages,
}

/// The loaded program. Dropping it detaches it.
#[derive(Debug)]
pub struct Refaults {
    counts: MapHandle,
    members: MapHandle,
    filter: MapHandle,
    buckets: u32,
    _links: Vec<Link>,
    _object: Object,
}

impl Refaults {
    /// Starts counting on a host with `memory`. [`Filter::Group`] counts the pages charged to the group, for any
    /// process, as the kernel counts; [`Filter::Members`] the pages that the members asked for themselves.
    ///
    /// # Errors
    /// Reason for which this host does not allow it, and the remedy.
    pub fn of(filter: Filter, memory: Pages) -> Result<Refaults, Unavailable> {
        libbpf_rs::set_print(None::<(PrintLevel, fn(PrintLevel, String))>);
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(|e| refused("be opened", &e))?;
        let buckets = buckets_for(memory);
        for mut map in open.maps_mut().filter(|map| map.name() == "evicted") {
            map.set_max_entries(buckets).map_err(|e| refused("have a table so large", &e))?;
        }
        let object = open.load().map_err(|e| refused("be loaded", &e))?;
        let handle = |name| bpf_object::map_of(&object, PROGRAM, name);
        let (filters, counts, members) = (handle("filter")?, handle("counts")?, handle("members")?);
        set_filter(&filters, filter, buckets)?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<Vec<Link>, _>>();
        let _links = links.map_err(|e| refused("be attached", &e))?;
        Ok(Refaults { counts, members, filter: filters, buckets, _links, _object: object })
    }

    /// Sets the processes to be counted from now on. Earlier counts stay.
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn set_filter(&self, filter: Filter) -> Result<(), Unavailable> {
        set_filter(&self.filter, filter, self.buckets)
    }

    /// Makes a process a member, for [`Filter::Members`]; processes that it starts are not members.
    ///
    /// # Errors
    /// When there are 65,536 already.
    pub fn add_member(&self, pid: Pid) -> Result<(), Unavailable> {
        let added = self.members.update(&pid.0.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY);
        added.map_err(|e| refused("take another member", &e))
    }

    /// Ends a membership: the process number may be reused.
    pub fn remove_member(&self, pid: Pid) {
        let _ = self.members.delete(&pid.0.to_ne_bytes()); // It may be none.
    }

    /// Refaults since loading.
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn so_far(&self) -> Result<Counts, Unavailable> {
        let of = |class: Class| {
            let counts = self.counts.lookup_percpu(&(class as u32).to_ne_bytes(), MapFlags::ANY);
            let counts = counts.map_err(|e| refused("be read", &e))?.unwrap_or_default();
            Ok(Pages(counts.iter().filter_map(|bytes| Some(u64::from_ne_bytes(*bytes.first_chunk()?))).sum()))
        };
        Ok(Counts { code: of(Class::Code)?, read_only: of(Class::ReadOnly)?, cache: of(Class::Cache)? })
    }
}

fn set_filter(map: &MapHandle, filter: Filter, buckets: u32) -> Result<(), Unavailable> {
    let FilterRecord { group, all, buckets_mask } = FilterRecord {
        group: if let Filter::Group(id) = filter { id } else { 0 },
        all: u32::from(filter == Filter::All),
        buckets_mask: buckets - 1,
    };
    let bytes = [&group.to_ne_bytes()[..], &all.to_ne_bytes(), &buckets_mask.to_ne_bytes()].concat();
    let set = map.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY);
    set.map_err(|e| refused("take the filter of processes", &e))
}

/// Buckets with an entry for each page of the memory, four to a bucket; at most 4 Mi buckets of 16 bytes.
fn buckets_for(memory: Pages) -> u32 {
    const WAYS: u64 = 4;
    const MOST: u32 = 1 << 22;
    cast::saturated::<_, u32>(memory.0.div_ceil(WAYS)).clamp(1, MOST).next_power_of_two()
}

fn refused(what: &str, error: &libbpf_rs::Error) -> Unavailable {
    bpf_object::refused(PROGRAM, what, error)
}

#[cfg(test)]
mod tests {
    use libbpf_rs::btf::Btf;
    use libbpf_rs::btf::types::Enum;

    use super::*;

    #[test]
    fn the_record_is_laid_out_as_in_the_compiled_program() {
        let offset = |name: &str, offset: usize| (name.to_owned(), u32::try_from(offset).unwrap());
        assert_eq!(
            bpf_object::layout("refaults.bpf.o", "refault_filter"),
            [
                offset("group", std::mem::offset_of!(FilterRecord, group)),
                offset("all", std::mem::offset_of!(FilterRecord, all)),
                offset("buckets_mask", std::mem::offset_of!(FilterRecord, buckets_mask)),
            ]
        );
    }

    #[test]
    fn the_table_has_a_place_for_each_page_up_to_a_bound() {
        assert_eq!(buckets_for(Pages(0)), 1);
        assert_eq!(buckets_for(Pages(6_000_000)), 1 << 21, "24 GiB: 32 MiB");
        assert_eq!(buckets_for(Pages(1 << 40)), 1 << 22);
    }

    #[test]
    fn the_classes_stand_where_the_compiled_program_has_them() {
        let btf = Btf::from_path(format!("{}/bpf/refaults.bpf.o", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let found = btf.type_by_name::<Enum<'_>>("refault_class").unwrap();
        let names: Vec<_> = found.iter().map(|member| member.name.unwrap().to_string_lossy().into_owned()).collect();
        assert_eq!([Class::Code, Class::ReadOnly, Class::Cache].map(|class| class as usize), [0, 1, 2]);
        assert_eq!(names[..3], ["REFAULT_CODE", "REFAULT_READ_ONLY", "REFAULT_CACHE"]);
    }
}
