//! `/etc/subuid`: ranges of users that a user may act as in user namespaces.
//!
//! A user with a range of 65,536 subordinate users is one user for fair sharing. The owner of a process's namespace,
//! independent of this file, is in `user_namespace.rs`.
//!
//! Cost: two small files. Side effects: none. Names are looked up in `/etc/passwd` alone, so the ranges of a user
//! known only elsewhere (LDAP) are ignored.
//!
//! Since: shadow 4.2. Truth: subuid(5), passwd(5).

use std::ops::Range;

use crate::KernelFiles;

/// Owners of subordinate users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners(Vec<(Range<u32>, u32)>);

impl Owners {
    /// Reads the ranges. A missing file has none.
    pub fn read(files: &impl KernelFiles) -> Owners {
        let read = |path| files.read(path).unwrap_or_default();
        Owners::parse(&read("etc/subuid"), &read("etc/passwd"))
    }

    fn parse(subuid: &str, passwd: &str) -> Owners {
        let user = |name: &str| {
            let of_name = passwd.lines().find_map(|line| {
                let mut fields = line.split(':');
                if fields.next() == Some(name) { fields.nth(1)?.parse().ok() } else { None }
            });
            of_name.or_else(|| name.parse().ok())
        };
        let range = |line: &str| {
            let mut fields = line.trim().split(':');
            let (name, start, count) = (fields.next()?, fields.next()?.parse::<u32>().ok()?, fields.next()?);
            let end = start.saturating_add(count.parse().ok()?);
            Some((start..end, user(name)?))
        };
        Owners(subuid.lines().filter_map(range).collect())
    }

    /// Owner of the subordinate user `user`, or `user` itself.
    pub fn owner_of(&self, user: u32) -> u32 {
        self.0.iter().find(|(range, _)| range.contains(&user)).map_or(user, |(_, owner)| *owner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn subordinate_users_are_their_owners() {
        let kernel = FakeKernel::new()
            .file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nana:x:1000:1000::/home/ana:/bin/sh\n")
            .file("etc/subuid", "ana:100000:65536\n1001:165536:65536\nnobody-knows:300000:10\n\nbroken\nana:x:y\n");
        let owners = Owners::read(&kernel);
        let of = |user| owners.owner_of(user);
        assert_eq!([of(0), of(1000), of(99_999), of(100_000), of(165_535)], [0, 1000, 99_999, 1000, 1000]);
        assert_eq!([of(165_536), of(231_071), of(231_072), of(300_000)], [1001, 1001, 231_072, 300_000]);
    }

    #[test]
    fn without_the_files_everybody_is_their_own() {
        assert_eq!(Owners::read(&FakeKernel::new()).owner_of(100_000), 100_000);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(subuid in "[a-z0-9:\n]{0,200}", passwd in "[a-z0-9:\n]{0,200}", user: u32) {
            let _ = Owners::parse(&subuid, &passwd).owner_of(user);
        }
    }
}
