use super::*;

const WHOLE: &str = r#"
policy = "equal"
rest_ways = 2
interval_s = 0.5
duty_fraction = 0.02
domain = "uid"

[region]
ways_max = 4

[[program]]
name = "web"
cgroup = "web"
domain = "shop"
l3 = [0, 1]
mpki = [40, 22.5, 9]
base_cycles = 500
miss_cycles = 180

[[program]]
name = "voice"
pids = [4121, 4122]
mask = "0x3"
exclusive = true

[[program]]
name = "store"
user = "redis"
executable = "/usr/bin/redis-server"
"#;

#[test]
fn all_that_can_be_said_is_understood() {
    let config = Config::parse("llc.toml", WHOLE).unwrap();
    assert_eq!((config.rest_ways, config.rest_line, config.domain_by), (Some(Ways(2)), 3, DomainBy::Uid));
    assert_eq!((config.interval, config.duty.get()), (Duration::from_millis(500), 0.02));
    assert_eq!(config.partitions, PartitionLimits { on: None, ways_max: Some(Ways(4)), line: 9 });
    let [web, voice, store] = &config.programs[..] else { panic!("three programs") };
    assert_eq!((web.name.as_str(), web.line), ("web", 12));
    assert_eq!((web.domain.as_deref(), web.l3.as_deref()), (Some("shop"), Some(&[0, 1][..])));
    assert_eq!(web.measured.as_ref().unwrap().misses, [40.0, 22.5, 9.0]);
    assert_eq!(voice.whom, Whom::Pids(vec![Pid(4121), Pid(4122)]));
    assert_eq!(voice.fixed, Some(Fixed { mask: WayMask(3), exclusive: true }));
    assert_eq!(store.whom.to_string(), "processes of user redis that run /usr/bin/redis-server");
    assert!(config.partition && store.measured.is_none());
}

#[test]
fn what_is_not_said_is_modest() {
    let config = Config::parse("f", "policy = \"equal\"\n[[program]]\nname = \"a\"\npids = [1]\n").unwrap();
    assert_eq!((config.rest_ways, config.interval, config.duty.get()), (None, Duration::from_secs(1), 0.01));
    assert!(config.partition && config.partitions.on.is_none() && config.partitions.ways_max.is_none());
}

/// The complaint about a program `a` with these further lines, and this above it.
fn complaint(above: &str, program: &str) -> String {
    let text = format!("policy = \"equal\"\n{above}\n[[program]]\nname = \"a\"\n{program}\n");
    Config::parse("llc.toml", &text).unwrap_err().to_string()
}

#[test]
fn each_mistake_is_named_with_its_line_and_what_was_expected() {
    let pids = "pids = [7]";
    let cases = [
        ("rest_ways = 0", pids, "llc.toml line 2: rest_ways = 0: expected 1 to 63 ways"),
        (
            "rest_ways = -1",
            pids,
            "llc.toml line 2: rest_ways = -1: invalid value: integer `-1`, expected a whole number, not below 0",
        ),
        ("ways = 2", pids, "llc.toml line 2: unknown field `ways`, expected one of"),
        ("interval_s = 0.0", pids, "llc.toml line 2: interval_s = 0: expected 0.05 to 3600 seconds"),
        ("duty_fraction = 1.5", pids, "llc.toml line 2: duty_fraction = 1.5: expected a part of one CPU"),
        (
            "domain = \"host\"",
            pids,
            "llc.toml line 2: domain = \"host\": unknown variant `host`, expected `cgroup` or `uid`",
        ),
        (
            "partition = \"maybe\"",
            pids,
            "llc.toml line 2: partition = \"maybe\": unknown variant `maybe`, expected `on` or `off`",
        ),
        (
            "",
            "",
            "llc.toml line 3: program a: expected one of cgroup, pids, or user with executable or command, found 0",
        ),
        (
            "",
            "pids = [7]\ncgroup = \"x\"",
            "llc.toml line 3: program a: expected one of cgroup, pids, or user with executable or command, found 2",
        ),
        ("", "pids = []", "llc.toml line 3: program a: pids = []: expected at least one"),
        ("", "pids = [0]", "llc.toml line 5: pid = 0: expected a process id above 0"),
        (
            "",
            "command = \"a-name-of-16-byte\"\nuser = 7",
            "llc.toml line 5: command = a-name-of-16-byte: expected 1 to 15 bytes",
        ),
        ("", "pids = [7]\nmask = \"5\"", "llc.toml line 6: mask = 5: expected at least one way, and ways in a row"),
        ("", "pids = [7]\nmask = \"g\"", "llc.toml line 6: mask = g: expected a mask of ways in hexadecimal"),
        ("", "pids = [7]\nexclusive = true", "llc.toml line 6: exclusive without a mask"),
        ("", "pids = [7]\nmpki = [1.0]", "llc.toml line 6: mpki without base_cycles: expected both"),
        (
            "",
            "pids = [7]\nmpki = [-1.0]\nbase_cycles = 5\nmiss_cycles = 1",
            "llc.toml line 6: mpki = [-1]: expected misses",
        ),
        ("", "pids = [7]\nbase_cycles = 5.0", "llc.toml line 6: what was measured without mpki"),
        (
            "",
            "pids = [7]\n[[program]]\nname = \"a\"\npids = [8]",
            "llc.toml line 7: name = \"a\" stands in line 4 already",
        ),
        ("", "pids = [7]\n[[program]]\nname = \"b\"\npids = [7]", "llc.toml line 7: process 7 is a's already"),
        (
            "",
            "cgroup = \"x\"\n[[program]]\nname = \"b\"\ncgroup = \"x\"",
            "llc.toml line 7: control group x is a's already",
        ),
        (
            "",
            "pids = [7]\nmask = \"f\"\nexclusive = true\n[[program]]\nname = \"b\"\npids = [8]\nmask = \"18\"",
            "llc.toml line 9: mask 18 of b overlaps mask f of a: expected none where one is exclusive",
        ),
    ];
    for (above, program, expected) in cases {
        let found = complaint(above, program);
        assert!(found.starts_with(expected), "expected: {expected}\n   found: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

#[test]
fn a_name_is_taken_only_of_a_users_processes_and_trust_wants_more_than_a_program() {
    let name = "llc.toml line 5: command = \"asterisk\" without a user: any process may call itself so; expected user";
    let refused = [
        ("command = \"asterisk\"", name),
        ("command = \"asterisk\"\ndomain = \"shop\"", name),
        ("command = \"asterisk\"\nexecutable = \"/usr/sbin/asterisk\"", name),
        (
            "executable = \"/usr/sbin/asterisk\"\ndomain = \"shop\"",
            "llc.toml line 6: domain with an executable alone: any user may run it, and would be trusted; expected user",
        ),
        ("executable = \"asterisk\"", "llc.toml line 5: executable = asterisk: expected a path from the root"),
        ("cgroup = \"web\"\nuser = \"web\"", "llc.toml line 3: program a: expected one of cgroup, pids, or user"),
        ("user = -1", "llc.toml line 5: user = -1"),
    ];
    for (program, expected) in refused {
        let found = complaint("", program);
        assert!(found.starts_with(expected), "expected: {expected}\n   found: {found}");
    }
    let taken = [
        "user = \"asterisk\"\ncommand = \"asterisk\"\ndomain = \"shop\"",
        "user = 0\nexecutable = \"/usr/sbin/asterisk\"\ndomain = \"shop\"",
        "user = \"4001\"",
        "executable = \"/usr/sbin/asterisk\"",
    ];
    for program in taken {
        let text = format!("policy = \"equal\"\n[[program]]\nname = \"a\"\n{program}\n");
        Config::parse("llc.toml", &text).unwrap();
    }
}

#[test]
fn a_user_is_a_number_or_is_looked_up_also_beside_names_that_are_no_text() {
    let text = "policy = \"equal\"\n[[program]]\nname = \"a\"\nuser = \"web\"\n[[program]]\nname = \"b\"\nuser = 33\n";
    let mut config = Config::parse("llc.toml", text).unwrap();
    let ids = |config: &Config| -> Vec<Option<u32>> {
        let of = |program: &Named| match &program.whom {
            Whom::Like(Like { user: Some(user), .. }) => user.id,
            _ => None,
        };
        config.programs.iter().map(of).collect()
    };
    assert_eq!(ids(&config), [None, Some(33)]);
    let unknown =
        config.look_up_users(b"root:x:0:0::/root:/bin/sh\nweb-data:x:7:7::/:\nweb:x:\n").unwrap_err().to_string();
    assert_eq!(unknown, "llc.toml line 4: user = \"web\": not in /etc/passwd: expected its number, as `id -u` says it");
    config
        .look_up_users(b"nonsense\n\xff\xfe:x:1:1::/:\nodd:x:2:2:J\xf6rg:/:\nweb:x:4242:1:\xff:/:/bin/false\n")
        .unwrap();
    assert_eq!(ids(&config), [Some(4242), Some(33)]);
}

#[test]
fn a_name_that_is_no_directory_is_refused_and_so_is_a_file_without_programs() {
    let text = "policy = \"equal\"\n[[program]]\nname = \"a/b\"\npids = [7]\n";
    let found = Config::parse("llc.toml", text).unwrap_err().to_string();
    assert!(found.starts_with("llc.toml line 3: name = a/b: expected 1 to 48 letters"), "{found}");
    let found = Config::parse("llc.toml", &text.replace("a/b", "shared.b")).unwrap_err().to_string();
    assert!(found.starts_with("llc.toml line 3: name = shared.b: expected"), "{found}");
    let found = Config::parse("llc.toml", "policy = \"equal\"\n").unwrap_err().to_string();
    assert_eq!(found, "llc.toml line 2: no [[program]]: expected at least one");
    let found = Config::parse("llc.toml", "policy = \"best\"\n").unwrap_err().to_string();
    assert!(found.starts_with("llc.toml line 1: policy = \"best\": unknown variant `best`, expected"), "{found}");
    let found = Config::parse("llc.toml", "policy = \n").unwrap_err().to_string();
    assert!(found.starts_with("llc.toml line 1: "), "{found}");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in ".{0,200}") {
        let _ = Config::parse("f", &text);
        let _ = Config::parse("f", &format!("policy = \"equal\"\n[[program]]\nname = \"a\"\n{text}\n"));
    }
}

/// The example named in messages is valid, also with all of its comments that show a setting.
#[test]
fn the_example_is_taken() {
    let text = include_str!("../../../../../integrations/llc/llc.toml");
    let config = Config::parse("llc.toml", text).unwrap();
    let names: Vec<&str> = config.programs.iter().map(|program| program.name.as_str()).collect();
    assert_eq!((names, config.rest_ways), (vec!["web", "db", "voice"], Some(Ways(2))));
    let is_setting = |line: &&str| {
        line.strip_prefix('#')
            .is_some_and(|rest| rest.starts_with(|first: char| first == '[' || first.is_ascii_lowercase()))
    };
    let shown: Vec<&str> = text.lines().map(|line| if is_setting(&line) { &line[1..] } else { line }).collect();
    let all = Config::parse("llc.toml", &shown.join("\n")).unwrap();
    assert_eq!((all.partitions.ways_max, all.programs[1].l3.clone()), (Some(Ways(4)), Some(vec![0])));
    // The comment of each default shows its value.
    assert_eq!(
        (all.partition, all.interval, all.duty, all.domain_by),
        (config.partition, config.interval, config.duty, config.domain_by)
    );
    assert!(all.programs[1].measured.is_some());
}
