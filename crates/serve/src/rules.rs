//! Choice of the rule of a process: the first match with an entry for the feature.

use glob::{MatchOptions, Pattern};

use crate::config::{Cache, Config, Huge, Rule, Select};
use crate::facts::Facts;

/// Rules in force for one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assignment {
    /// Huge pages.
    pub huge: Option<InForce<Huge>>,
    /// Page cache.
    pub cache: Option<InForce<Cache>>,
}

/// Settings of a rule for one feature.
#[derive(Clone, Debug, PartialEq)]
pub struct InForce<T> {
    /// Name of the rule.
    pub rule: String,
    /// Its settings.
    pub settings: T,
}

/// `*` and `?` stand for parts of one name, `**` for any number of names.
const PARTS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

/// Rules in force for a process. masu itself, the first process and the kernel's threads have none.
pub fn assign(config: &Config, facts: &Facts) -> Assignment {
    if facts.is_untouchable {
        return Assignment::default();
    }
    Assignment { huge: first(config, facts, |rule| rule.huge), cache: first(config, facts, |rule| rule.cache) }
}

fn first<T>(config: &Config, facts: &Facts, of: impl Fn(&Rule) -> Option<T>) -> Option<InForce<T>> {
    let mut named = config.rules.iter().filter_map(|rule| Some((rule, of(rule)?)));
    let (rule, settings) = named.find(|(rule, _)| matches(&rule.select, facts))?;
    Some(InForce { rule: rule.name.clone(), settings })
}

fn matches(select: &Select, facts: &Facts) -> bool {
    let fits = |pattern: &Option<Pattern>, value: Option<&str>| {
        pattern.as_ref().is_none_or(|pattern| value.is_some_and(|value| pattern.matches_with(value, PARTS)))
    };
    fits(&select.unit, facts.unit.as_deref())
        && select.cgroup.as_ref().is_none_or(|pattern| facts.groups.iter().any(|group| is_within(pattern, group)))
        && select.executable.as_ref().is_none_or(|path| facts.executables.contains(path))
        && select.user.is_none_or(|user| facts.users == [user; 4])
        && fits(&select.command, Some(&facts.command))
}

/// Whether the group, or one above it, has a path of this form.
fn is_within(pattern: &Pattern, group: &str) -> bool {
    let group = group.trim_start_matches('/');
    let ends = group.match_indices('/').map(|(at, _)| at).chain([group.len()]);
    ends.into_iter().any(|end| pattern.matches_with(&group[..end], PARTS))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use proptest::prelude::*;

    use super::*;

    fn facts() -> Facts {
        Facts {
            unit: Some("redis-server.service".to_owned()),
            groups: vec!["/system.slice/redis-server.service/worker".to_owned()],
            executables: vec![PathBuf::from("/usr/bin/redis-check-rdb")],
            users: [106; 4],
            command: "redis-server".to_owned(),
            is_untouchable: false,
        }
    }

    fn config(selects: &[&str]) -> Config {
        let mut config = Config::default();
        for (number, select) in selects.iter().enumerate() {
            let text =
                format!("[[rule]]\nname = \"r{number}\"\nselect = {{ {select} }}\nhuge = {{ mode = \"hot\" }}\n");
            config.add(Path::new("masu.toml"), &text, "").unwrap();
        }
        config
    }

    fn rule_of(config: &Config, facts: &Facts) -> Option<String> {
        assign(config, facts).huge.map(|huge| huge.rule)
    }

    fn holds(select: &str, facts: &Facts) -> bool {
        rule_of(&config(&[select]), facts).is_some()
    }

    #[test]
    fn a_selector_matches_if_each_of_its_parts_does() {
        for select in [
            r#"unit = "redis*.service""#,
            r#"cgroup = "system.slice/redis-server.service""#,
            r#"cgroup = "/system.slice/redis-*.service/worker""#,
            r#"cgroup = "system.slice""#,
            r#"cgroup = "system.slice/**""#,
            r#"executable = "/usr/bin/redis-check-rdb""#,
            r#"user = "106""#,
            r#"command = "redis-*", user = "106""#,
            r#"unit = "redis*.service", user = "106""#,
        ] {
            assert!(holds(select, &facts()), "{select}");
        }
        for select in [
            r#"unit = "redis.service""#,
            r#"cgroup = "system.slice/redis""#,
            r#"cgroup = "system*redis*""#,
            r#"cgroup = "redis-server.service""#,
            r#"executable = "/usr/bin/redis-server""#,
            r#"user = "0""#,
            r#"command = "redis", user = "106""#,
            r#"unit = "redis*.service", user = "0""#,
        ] {
            assert!(!holds(select, &facts()), "{select}");
        }
    }

    #[test]
    fn a_program_with_the_rights_of_another_user_belongs_to_neither() {
        let setuid = Facts { users: [1000, 0, 0, 0], ..facts() };
        assert!(!holds(r#"user = "1000""#, &setuid) && !holds(r#"user = "0""#, &setuid));
    }

    #[test]
    fn the_first_rule_that_matches_holds_and_none_for_the_untouchable() {
        let config = config(&[r#"user = "7""#, r#"unit = "redis*""#, r#"user = "106""#]);
        assert_eq!(rule_of(&config, &facts()).as_deref(), Some("r1"));
        let none = Facts { unit: None, groups: Vec::new(), ..facts() };
        assert_eq!(rule_of(&config, &none).as_deref(), Some("r2"));
        assert_eq!(assign(&config, &Facts { is_untouchable: true, ..facts() }), Assignment::default());
    }

    #[test]
    fn each_feature_has_the_first_rule_that_names_it() {
        let mut config = config(&[r#"unit = "redis*""#]);
        let text = "[[rule]]\nname = \"cache\"\nselect = { user = \"106\" }\naging = { cache = 0 }\n\
                    [[rule]]\nname = \"both\"\nselect = { user = \"106\" }\naging = { cache = 100 }\nhuge = { mode = \"leave\" }\n";
        config.add(Path::new("masu.toml"), text, "").unwrap();
        let now = assign(&config, &facts());
        assert_eq!(now.huge.map(|huge| huge.rule).as_deref(), Some("r0"));
        assert_eq!(now.cache, Some(InForce { rule: "cache".to_owned(), settings: Cache::Drop }));
    }

    proptest! {
        #[test]
        fn more_rules_behind_change_nothing(users in prop::collection::vec(0..4u32, 1..6), user in 0..4u32) {
            let selects: Vec<String> = users.iter().map(|user| format!("user = \"{user}\"")).collect();
            let selects: Vec<&str> = selects.iter().map(String::as_str).collect();
            let facts = Facts { users: [user; 4], ..facts() };
            let expected = users.iter().position(|other| *other == user);
            prop_assert_eq!(rule_of(&config(&selects), &facts), expected.map(|number| format!("r{number}")));
        }

        #[test]
        fn any_group_is_compared(pattern in "[a-z*?/\\[]{1,8}", group in "[/a-zé]{0,8}") {
            if let Ok(pattern) = Pattern::new(&pattern) {
                is_within(&pattern, &group);
            }
        }
    }
}
