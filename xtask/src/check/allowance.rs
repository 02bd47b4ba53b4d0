//! Numbers of violations that a package may still have while a new rule comes into force.

use std::collections::BTreeMap;

use super::Violation;
use super::source::Source;

/// Packages with the violations that they may still have.
pub type Left = &'static [(&'static str, usize)];

/// The violations in the packages that have more than they may.
pub fn beyond(left: Left, sources: &[Source], rule: impl Fn(&Source) -> Vec<Violation>) -> Vec<Violation> {
    let mut by_package = BTreeMap::<&str, Vec<Violation>>::new();
    for source in sources {
        by_package.entry(source.package().0).or_default().extend(rule(source));
    }
    let allowed = |package: &str| left.iter().find(|(name, _)| *name == package).map_or(0, |(_, count)| *count);
    by_package
        .into_iter()
        .filter(|(package, found)| found.len() > allowed(package))
        .flat_map(|(_, found)| found)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_with_more_than_it_may_have_is_named() {
        let sources = ["crates/llc/src/a.rs", "crates/llc/src/b.rs", "crates/sim/src/a.rs", "bench/src/a.rs"]
            .map(|path| Source::new(path, ""));
        let each = |source: &Source| vec![Violation::of_file(&source.path, String::new())];
        let paths = |left| beyond(left, &sources, each).into_iter().map(|violation| violation.path).collect::<Vec<_>>();
        assert_eq!(paths(&[("bench", 1), ("crates/llc", 2), ("crates/sim", 1)]), [""; 0]);
        assert_eq!(
            paths(&[("bench", 1), ("crates/llc", 1)]),
            ["crates/llc/src/a.rs", "crates/llc/src/b.rs", "crates/sim/src/a.rs"]
        );
    }
}
