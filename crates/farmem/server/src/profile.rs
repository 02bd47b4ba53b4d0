//! Saved site profiles of a program, for its next run.
//!
//! A program is identified by its build-id. A site is identified by the build-id of the file with its instruction, and
//! its offset in that file, since addresses differ in each run. `file.rs` is the byte format, `folder.rs` the place of
//! profiles.
//!
//! While a program waits after its first handshake message, its loader has mapped all its files: then the sites'
//! addresses are found, and the library gets them before the program's first instruction. Fault handling does not use
//! the profile.

mod file;
mod folder;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use farmem_engine::policy::site::{InitialProfile, SITES, Sites};
use farmem_engine::units::Learned;
use linux::build_id::{BuildId, build_id};
use linux::maps::Mapping;
use serde::{Deserialize, Serialize, Serializer};

pub use file::{Broken, MOST_BYTES, SavedSite, bytes, parse};
pub use folder::Folder;

/// Report on a program's profile.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Profiled {
    /// Path of the file. In JSON, where a name can only be text, other bytes are replaced by marks.
    #[serde(serialize_with = "text")]
    pub path: PathBuf,
    /// Number of sites loaded from an earlier run.
    pub sites_loaded: u64,
    /// Number of sites saved for the next run.
    pub sites_saved: u64,
}

fn text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

/// Running program, and its profile.
pub struct Profile {
    path: PathBuf,
    loaded: u64,
    code: Vec<Code>,
}

/// Executable file mapping at the start. Its build-id was read then: at the program's end another file may be in its
/// place.
struct Code {
    addresses: Range<u64>,
    /// Offset of the mapping in the file.
    offset: u64,
    build: BuildId,
}

impl Profile {
    /// Loads the profile of the program in the file `exe`, and its known sites. `None` when the program has no
    /// build-id. A damaged profile is reported.
    pub fn begin(
        folder: &Folder,
        exe: &Path,
        mappings: &[Mapping],
        say: impl FnOnce(String),
    ) -> Option<(Profile, Vec<InitialProfile>)> {
        let path = folder.path_of(build_id(exe, None)?);
        let kept = folder.load(&path).unwrap_or_else(|why| {
            say(format!("the profile {} is not used: {why}", path.display()));
            Vec::new()
        });
        let code = code(mappings, |mapping| build_id(mapping.path.path(), Some(mapping.inode)));
        let profiles = profiles(&kept, &code);
        let loaded = profiles.len() as u64;
        Some((Profile { path, loaded, code }, profiles))
    }

    /// Saves the learned profiles, and keeps earlier ones of other sites: other processes of the program end too, and
    /// have run other parts of it. The file stays as it is when nothing was learned.
    pub fn end(&self, folder: &Folder, learned: &Learned, say: impl FnOnce(String)) -> Profiled {
        // One process at a time: each adds to the file of its predecessor.
        static ENDS: Mutex<()> = Mutex::new(());
        let _one = ENDS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = saved_sites(learned, &self.code);
        if !kept.is_empty() {
            // A damaged file was reported at the start.
            let before = folder.load(&self.path).unwrap_or_default();
            let mut known: BTreeSet<_> = kept.iter().map(|site| (site.object, site.offset)).collect();
            kept.extend(before.into_iter().filter(|site| known.insert((site.object, site.offset))));
            kept.truncate(SITES);
        }
        let mut saved = kept.len() as u64;
        if saved > 0
            && let Err(error) = folder.save(&self.path, &bytes(&kept))
        {
            saved = 0;
            say(format!("the profile {} cannot be written: {error}", self.path.display()));
        }
        Profiled { path: self.path.clone(), sites_loaded: self.loaded, sites_saved: saved }
    }
}

/// Builds of the mappings. Each file is read once.
fn code(mappings: &[Mapping], build: impl Fn(&Mapping) -> Option<BuildId>) -> Vec<Code> {
    let mut builds = BTreeMap::new();
    let is_code = |mapping: &&Mapping| mapping.permissions.execute && mapping.path.bytes().starts_with(b"/");
    let code = mappings.iter().filter(is_code).filter_map(|mapping| {
        let build = (*builds.entry((&mapping.path, mapping.inode)).or_insert_with(|| build(mapping)))?;
        let addresses = mapping.range.start().0..mapping.range.end().0;
        Some(Code { addresses, offset: mapping.offset, build })
    });
    code.collect()
}

/// Addresses of the saved sites in this run, with their profiles.
fn profiles(kept: &[SavedSite], code: &[Code]) -> Vec<InitialProfile> {
    let address = |site: &SavedSite| {
        code.iter().filter(|code| code.build == site.object).find_map(|code| {
            let address = code.addresses.start.checked_add(site.offset.checked_sub(code.offset)?)?;
            code.addresses.contains(&address).then_some(address)
        })
    };
    let profiles =
        kept.iter().take(SITES).filter_map(|site| Some(InitialProfile { site: address(site)?, profile: site.profile }));
    // The program's table has no place for some: the same ones here.
    let mut table = Box::<Sites>::default();
    profiles.filter(|initial| table.preset(*initial)).collect()
}

/// Sites that have learned anything, by build-id and offset, the most faults first.
fn saved_sites(learned: &Learned, code: &[Code]) -> Vec<SavedSite> {
    let mut profiles: Vec<(u32, InitialProfile)> = learned.sites.profiles().collect();
    profiles.sort_by_key(|(faults, _)| std::cmp::Reverse(*faults));
    let kept = profiles.into_iter().filter_map(|(_, initial)| {
        let code = code.iter().find(|code| code.addresses.contains(&initial.site))?;
        let offset = initial.site - code.addresses.start + code.offset;
        Some(SavedSite { object: code.build, offset, profile: initial.profile })
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use farmem_engine::policy::site::SiteProfile;
    use linux::maps;

    use super::*;

    const FIRST: &str = "\
55aa00000000-55aa00001000 r--p 00000000 fe:00 1 /bin/solver
55aa00001000-55aa00009000 r-xp 00001000 fe:00 1 /bin/solver
7f0000010000-7f0000050000 r-xp 00010000 fe:00 2 /lib/libm.so
7f0000060000-7f0000070000 r-xp 00000000 fe:00 3 /lib/no-build-id.so
";
    const SECOND: &str = "\
561100001000-561100009000 r-xp 00001000 fe:00 1 /home/me/solver
7f9999910000-7f9999950000 r-xp 00010000 fe:00 2 /lib/libm.so
";

    fn code_of(text: &str) -> Vec<Code> {
        code(&maps::parse(text, "maps").unwrap(), |mapping| match &*mapping.path.text() {
            "/lib/no-build-id.so" => None,
            path => Some(BuildId([if path.ends_with("solver") { 1 } else { 2 }; 20])),
        })
    }

    #[test]
    fn a_site_is_found_again_wherever_its_file_is_loaded() {
        let mut learned = Box::<Learned>::default();
        let profile = SiteProfile::of(&[5; 24]);
        // In the program, in a library, in one without a build-id, in no file, of the kernel.
        let sites = [0x55aa_0000_1234, 0x7f00_0001_0010, 0x7f00_0006_0000, 0x1000, 1];
        for site in sites {
            assert!(learned.sites.preset(InitialProfile { site, profile }));
        }
        let mut kept = saved_sites(&learned, &code_of(FIRST));
        kept.sort_by_key(|site| site.offset);
        let places: Vec<_> = kept.iter().map(|site| (site.object.0[0], site.offset)).collect();
        assert_eq!(places, [(1, 0x1234), (2, 0x10010)]);
        let mut found: Vec<_> = profiles(&kept, &code_of(SECOND)).iter().map(|initial| initial.site).collect();
        found.sort_unstable();
        assert_eq!(found, [0x5611_0000_1234, 0x7f99_9991_0010]);
    }

    #[test]
    fn a_site_outside_of_all_that_is_mapped_is_left_out() {
        let profile = SiteProfile::of(&[5; 24]);
        let site = |id: u8, offset| SavedSite { object: BuildId([id; 20]), offset, profile };
        let wild = [site(1, 0), site(1, 0x9000), site(1, u64::MAX), site(3, 0x1234)];
        assert_eq!(profiles(&wild, &code_of(SECOND)), []);
    }

    #[test]
    fn a_site_that_finds_no_place_is_not_counted() {
        let site = |offset| SavedSite { object: BuildId([1; 20]), offset, profile: SiteProfile::of(&[5; 24]) };
        assert_eq!(profiles(&[site(0x1234); 3], &code_of(SECOND)).len(), 1);
        let many: Vec<SavedSite> = (0x1000..0x1000 + SITES as u64).map(site).collect();
        let found = profiles(&many, &code_of(SECOND));
        assert!(found.len() < SITES, "some sets of the table are full");
        let mut table = Box::<Sites>::default();
        assert!(found.iter().all(|initial| table.preset(*initial)));
    }

    /// Mappings of a program.
    fn mapped(program: &Path) -> Vec<Mapping> {
        let inode = std::fs::metadata(program).unwrap().ino();
        maps::parse(&format!("1000-9000 r-xp 00001000 fe:00 {inode} {}\n", program.display()), "maps").unwrap()
    }

    fn learned_at(site: u64) -> Box<Learned> {
        let mut learned = Box::<Learned>::default();
        assert!(learned.sites.preset(InitialProfile { site, profile: SiteProfile::of(&[5; 24]) }));
        learned
    }

    #[test]
    fn a_program_that_is_built_anew_while_it_runs_learns_for_the_build_that_runs() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::at(home.path().join("profiles"));
        let program = home.path().join("program");
        std::fs::copy("/bin/sh", &program).unwrap();
        let (mappings, build) = (mapped(&program), build_id(&program, None).unwrap());
        let (profile, _) = Profile::begin(&folder, &program, &mappings, |why| panic!("{why}")).unwrap();
        let newer = home.path().join("newer");
        std::fs::copy("/bin/cat", &newer).unwrap();
        std::fs::rename(&newer, &program).unwrap();
        assert_eq!(profile.end(&folder, &learned_at(0x1234), |why| panic!("{why}")).sites_saved, 1);
        let kept = folder.load(&folder.path_of(build)).unwrap();
        assert_eq!((kept[0].object, kept[0].offset), (build, 0x1234));
        // Where another file lies already, the running build is unknown.
        let (late, _) = Profile::begin(&folder, &program, &mappings, |why| panic!("{why}")).unwrap();
        assert!(late.code.is_empty());
    }

    #[test]
    fn what_each_process_of_a_program_learned_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::at(home.path().join("profiles"));
        let program = Path::new("/bin/sh");
        let begin = || Profile::begin(&folder, program, &mapped(program), |why| panic!("{why}")).unwrap();
        let ((first, _), (second, _)) = (begin(), begin());
        let saved = [(&first, 0x1111), (&second, 0x2222), (&first, 0x1111)]
            .map(|(profile, site)| profile.end(&folder, &learned_at(site), |why| panic!("{why}")).sites_saved);
        assert_eq!(saved, [1, 2, 2]);
        assert_eq!(begin().1.iter().map(|initial| initial.site).collect::<Vec<_>>(), [0x1111, 0x2222]);
    }
}
