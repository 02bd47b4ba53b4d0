//! Environment of a program that is started with the preload library.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use contract::settings::{PRELOAD, Settings, TUNABLE, TUNABLES, VARIABLE};
use farmem::store::PASSWORD_VARIABLE;

use crate::failure::Failure;

/// The library for huge pages.
pub const NAME: &str = "libmasu-preload.so";

/// The library for programs larger than their machine.
pub const PAGER: &str = "libmasu-pager.so";

/// Parameter of Open MPI 4: how it copies between processes of a machine. It prints each refusal of process_vm_readv and
/// process_vm_writev, whatever the error, and asks again; MPI_Put asks for ever.
const OPEN_MPI_COPY: &str = "OMPI_MCA_btl_vader_single_copy_mechanism";

/// Copies by both processes, through shared memory. `none` does so, too, but MPI_Win_create fails: one-sided
/// communication (osc/rdma) needs a transport that puts and gets.
const OPEN_MPI_COPY_BY_BOTH: &str = "emulated";

/// Finds a library: beside this program (as built), or where it is installed.
pub fn library(name: &str) -> Result<PathBuf, Failure> {
    let missing = |why: String| {
        let failure = Failure::new(format!("cannot find {name}: {why}"));
        failure.remedy(match name {
            NAME => "`make install` puts it where masu looks; --huge hot does without it.",
            _ => "`make install` puts it where masu looks.",
        })
    };
    let own = std::env::current_exe().map_err(|error| missing(error.to_string()))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(name), folder.join("../lib/masu").join(name)];
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    let found = found.ok_or_else(|| missing(format!("not in {} nor in ../lib/masu beside it", folder.display())))?;
    // The loader takes both characters for separators, and has no escape for them.
    if found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ')) {
        return Err(missing(format!("the loader takes no path with a space or a colon: {}", found.display())));
    }
    Ok(found)
}

/// Whether the user has disabled the library.
pub fn is_disabled() -> bool {
    std::env::var_os(contract::settings::DISABLE).is_some_and(|value| !matches!(value.as_bytes(), b"" | b"0"))
}

/// A change to a variable: a new value, or `None` to remove it.
pub type Change = (&'static str, Option<OsString>);

/// Variables to set. `now` looks up the current value of a variable.
pub fn variables(library: &Path, settings: &Settings<'_>, now: impl Fn(&str) -> Option<OsString>) -> Vec<Change> {
    let rest = without_ours(&now);
    let rest_of = |name| match rest.iter().find(|(changed, _)| *changed == name) {
        Some((_, value)) => value.clone(),
        None => now(name),
    };
    let with = |first: &OsStr, rest: Option<OsString>| {
        let mut value = first.to_owned();
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            value.push(":");
            value.push(rest);
        }
        Some(value)
    };
    vec![(PRELOAD, with(library.as_os_str(), rest_of(PRELOAD))), (VARIABLE, Some(settings.to_string().into()))]
}

/// Whether the user has chosen by himself how malloc uses huge pages.
pub fn has_chosen_malloc(now: impl Fn(&str) -> Option<OsString>) -> bool {
    now(TUNABLES).is_some_and(|tunables| parts(&tunables).any(|tunable| tunable.starts_with(TUNABLE.as_bytes())))
}

/// Variables to set for a paged program. The store's password is masu's: neither the program nor its children get it.
pub fn paged<const VARIABLES: usize>(
    library: &Path,
    of_masu: [(&'static str, Option<String>); VARIABLES],
    now: impl Fn(&str) -> Option<OsString>,
) -> Vec<Change> {
    let mut changes = without_ours(&now);
    if now(OPEN_MPI_COPY).is_none() {
        changes.push((OPEN_MPI_COPY, Some(OPEN_MPI_COPY_BY_BOTH.into())));
    }
    let preload = match changes.iter().position(|(changed, _)| *changed == PRELOAD) {
        Some(index) => changes.swap_remove(index).1,
        None => now(PRELOAD),
    };
    let mut value = library.as_os_str().to_owned();
    if let Some(rest) = preload.filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    changes.push((PRELOAD, Some(value)));
    changes.extend(of_masu.map(|(name, value)| (name, value.map(OsString::from))));
    changes.push((PASSWORD_VARIABLE, None));
    changes
}

/// Changes that keep an outer masu from serving the program; empty without one.
pub fn without_ours(now: impl Fn(&str) -> Option<OsString>) -> Vec<Change> {
    if now(VARIABLE).is_none() {
        return Vec::new();
    }
    let without = |name, is_ours: &dyn Fn(&[u8]) -> bool| {
        let rest: Vec<Vec<u8>> =
            now(name).iter().flat_map(parts).filter(|part| !is_ours(part)).map(<[u8]>::to_vec).collect();
        let rest = rest.join(&b':');
        (name, (!rest.is_empty()).then(|| OsString::from_vec(rest)))
    };
    let is_library = |part: &[u8]| Path::new(OsStr::from_bytes(part)).file_name() == Some(OsStr::new(NAME));
    vec![(VARIABLE, None), without(PRELOAD, &is_library)]
}

fn parts(value: &OsString) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b':').filter(|part| !part.is_empty())
}

/// Libraries that the environment names and that do not exist: the loader reports them in the program's name.
pub fn missing_libraries(preload: Option<&OsStr>) -> Vec<String> {
    let names = preload.map(OsStr::as_bytes).unwrap_or_default();
    let names = names.split(|byte| matches!(byte, b':' | b' ')).filter(|name| name.contains(&b'/'));
    let paths = names.map(|name| Path::new(OsStr::from_bytes(name)));
    // `$LIB` and the like are expanded by the loader.
    let plain = paths.filter(|path| !path.as_os_str().as_bytes().contains(&b'$'));
    plain.filter(|path| !path.exists()).map(|path| path.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use contract::placement::{Size, Sizes};

    use super::*;

    fn made(now: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let settings = Settings { align: true, sizes: Sizes::NONE.with(Size::HUGE), ..Settings::default() };
        let find = |name: &str| now.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let made = variables(Path::new("/lib/masu.so"), &settings, find);
        made.into_iter().map(|(name, value)| (name, value.unwrap().into_string().unwrap())).collect()
    }

    #[test]
    fn a_plain_environment_gets_two_variables() {
        let wanted = [("LD_PRELOAD", "/lib/masu.so"), ("MASU_TOUCH", "align,sizes=2048")];
        assert_eq!(made(&[]), wanted.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(made(&[("LD_PRELOAD", "")])[0].1, "/lib/masu.so");
    }

    #[test]
    fn what_was_there_stays_behind_ours() {
        let made = made(&[("LD_PRELOAD", "/a.so:/b.so"), ("GLIBC_TUNABLES", "glibc.malloc.check=1")]);
        assert_eq!(made[0].1, "/lib/masu.so:/a.so:/b.so");
        assert_eq!(made.len(), 2, "children inherit tunables: masu sets none");
    }

    #[test]
    fn a_tunable_that_the_user_chose_is_kept() {
        let chosen = |value: &str| has_chosen_malloc(|_| Some(value.into()));
        assert!(chosen("glibc.malloc.hugetlb=2") && chosen("glibc.malloc.check=1:glibc.malloc.hugetlb=0"));
        assert!(!chosen("glibc.malloc.check=1") && !has_chosen_malloc(|_| None));
    }

    #[test]
    fn within_a_run_what_the_outer_one_added_is_taken_away() {
        let outer = [("LD_PRELOAD", "/usr/lib/masu/libmasu-preload.so:/a.so"), ("MASU_TOUCH", "align,sizes=2048")];
        let find = |name: &str| outer.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let changes = [("MASU_TOUCH", None), ("LD_PRELOAD", Some("/a.so".into()))];
        assert_eq!(without_ours(find), changes);
        assert_eq!(without_ours(|_| None), []);
        assert_eq!(made(&outer)[0].1, "/lib/masu.so:/a.so");
    }

    #[test]
    fn a_paged_program_gets_what_is_for_it_and_not_the_stores_password() {
        let now = |name: &str| [PASSWORD_VARIABLE, OPEN_MPI_COPY].contains(&name).then(|| OsString::from("hunter22"));
        let variables = [("A", Some("1".to_owned())), ("B", None), ("C", None)];
        let changes = paged(Path::new("/lib/pager.so"), variables, now);
        let wanted = [(PRELOAD, Some("/lib/pager.so".into())), ("A", Some("1".into())), ("B", None), ("C", None)];
        assert_eq!(changes, [&wanted[..], &[(PASSWORD_VARIABLE, None)]].concat());
    }

    #[test]
    fn open_mpi_copies_through_shared_memory_unless_the_user_has_chosen() {
        let choice = |chosen: Option<&str>| {
            let now = |name: &str| chosen.filter(|_| name == OPEN_MPI_COPY).map(OsString::from);
            let changes = paged(Path::new("/lib/pager.so"), [], now);
            changes.into_iter().find(|(name, _)| *name == OPEN_MPI_COPY).and_then(|(_, value)| value)
        };
        assert_eq!(choice(None), Some(OPEN_MPI_COPY_BY_BOTH.into()));
        assert_eq!(choice(Some("cma")), None);
    }

    #[test]
    fn libraries_that_are_not_there_are_named() {
        let missing = |preload: &str| missing_libraries(Some(OsStr::new(preload)));
        assert_eq!(missing("/nowhere/a.so /proc/self/exe:libm.so.6:/$LIB/x.so"), ["/nowhere/a.so"]);
        assert!(missing_libraries(None).is_empty());
    }
}
