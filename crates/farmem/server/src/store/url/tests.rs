use proptest::prelude::*;

use super::*;

fn redis(text: &str) -> RedisUrl {
    match text.parse() {
        Ok(StoreUrl::Redis(url)) => url,
        other => panic!("{text}: {other:?}"),
    }
}

fn file(text: &str) -> FileUrl {
    match text.parse() {
        Ok(StoreUrl::File(url)) => url,
        other => panic!("{text}: {other:?}"),
    }
}

fn failure(text: &str) -> String {
    text.parse::<StoreUrl>().unwrap_err().to_string()
}

#[test]
fn a_directory_may_be_written_in_three_ways() {
    assert_eq!(file("file:/var/tmp").directory, PathBuf::from("/var/tmp"));
    assert_eq!(file("file:///var/tmp").directory, PathBuf::from("/var/tmp"));
    assert_eq!(file("file:here").directory, PathBuf::from("here"));
    assert_eq!(file("file:/a%3Fb%25").directory, PathBuf::from("/a?b%"));
    assert!(!file("file:/var/tmp").sync);
    assert!(file("file:/var/tmp?sync").sync);
    assert!(!file("file:/var/tmp?sync=no").sync);
}

#[test]
fn a_server_may_be_named_shortly() {
    let url = redis("redis://node1");
    assert_eq!(url.hosts, [Host { name: "node1".to_owned(), port: 6379 }]);
    assert_eq!((url.user, url.password, url.database, url.tls), (None, None, 0, None));
    assert_eq!((url.replicas, url.timeout, url.ttl), (None, TIMEOUT, TTL));
}

#[test]
fn a_server_may_be_named_with_everything() {
    let url =
        redis("rediss://me:p%40ss@node1:7000,[::1]:7001/2?replicas=2&ca=/ca.pem&timeout=250ms&ttl=2h&eviction=accept");
    let hosts = [Host { name: "node1".to_owned(), port: 7000 }, Host { name: "::1".to_owned(), port: 7001 }];
    assert_eq!(url.hosts, hosts);
    assert_eq!(url.user.as_deref(), Some("me"));
    assert_eq!(url.password.as_ref().map(Secret::reveal), Some("p@ss"));
    assert_eq!(url.database, 2);
    assert_eq!(url.tls, Some(TlsFiles { authorities: Some("/ca.pem".into()), own: None }));
    assert_eq!(url.replicas, Some(2));
    assert_eq!(url.timeout, Duration::from_millis(250));
    assert_eq!(url.ttl, Duration::from_secs(7200));
    assert!(url.accepts_eviction);
    assert_eq!(url.to_string(), "rediss://node1:7000,[::1]:7001/2");
}

#[test]
fn a_password_may_stand_alone() {
    let url = redis("redis://:secret@node1");
    assert_eq!((url.user.as_deref(), url.password.as_ref().map(Secret::reveal)), (None, Some("secret")));
    assert!(!format!("{url:?}").contains("secret"));
}

#[test]
fn a_password_with_an_at_sign_ends_at_the_last_one() {
    assert_eq!(redis("redis://:a@b@node1").password.as_ref().map(Secret::reveal), Some("a@b"));
}

#[test]
fn every_bad_url_says_what_is_wrong_and_shows_a_good_one() {
    let cases = [
        ("", "expected file:DIR, redis://… or rediss://…"),
        ("/var/tmp", "expected file:DIR"),
        ("http://x", "http: is no kind of store"),
        ("file:", "without a directory"),
        ("file://host/dir", "without a host"),
        ("file:/a%zz", "written as %25"),
        ("file:/a?fast", "no option \"fast\""),
        ("file:/a?sync=maybe", "sync=maybe: expected yes or no"),
        ("redis:node1", "two slashes"),
        ("redis://", "a host without a name"),
        ("redis://a,,b", "a host without a name"),
        ("redis://node1:0", "port \"0\" of host \"node1\""),
        ("redis://node1:99999", "port \"99999\""),
        ("redis://node1:", "port \"\""),
        ("redis://no de", "host \"no de\""),
        ("redis://::1:6379", "a host without a name"),
        ("redis://fe80::1", "stands in brackets"),
        ("redis://[::1", "a [ without its ]"),
        ("redis://[nonsense]", "expected an IPv6 address"),
        ("redis://node1/x", "database \"x\""),
        ("redis://node1#x", "after a #"),
        ("redis://node1?replicas=many", "replicas=many"),
        ("redis://node1?timeout=0s", "timeout=0s"),
        ("redis://node1?ttl=1s", "ttl=1s"),
        ("redis://node1?eviction=no", "eviction=no"),
        ("redis://node1?ca=/x", "needs an encrypted connection"),
        ("rediss://node1?cert=/x", "go together"),
        ("redis://node1?colour=red", "no option \"colour\""),
        ("redis://node1\n", "control character"),
    ];
    for (text, expected) in cases {
        let message = failure(text);
        assert!(message.contains(expected), "{text:?}: {message}");
        assert!(message.starts_with("store URL: ") && message.contains(", such as "), "{text:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{text:?}: {message}");
    }
}

#[test]
fn the_example_of_every_message_is_a_good_url() {
    for text in ["", "file:", "redis://", "redis://n/x", "redis://n?ca=x", "redis://n?ttl=x", "rediss://n?key=x"] {
        let example = text.parse::<StoreUrl>().unwrap_err().example;
        assert!(example.parse::<StoreUrl>().is_ok(), "{text:?}: {example}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_url_or_one_line_of_reason(text in any::<String>()) {
        if let Err(error) = text.parse::<StoreUrl>() {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn what_looks_like_a_url_never_panics(text in "(file|redis|rediss|x)?:?/?/?[a-z%@:,\\[\\]/?&=#0-9é]{0,40}") {
        let _ = text.parse::<StoreUrl>();
    }

    #[test]
    fn what_was_parsed_prints_as_a_url_of_the_same_servers(
        names in prop::collection::vec("[a-z][a-z0-9-]{0,8}", 1..4), port in 1u16.., database in 0u32..16
    ) {
        let hosts: Vec<_> = names.iter().map(|name| format!("{name}:{port}")).collect();
        let url = redis(&format!("redis://user:pw@{}/{database}?replicas=1", hosts.join(",")));
        let again = redis(&url.to_string());
        prop_assert_eq!(&again.hosts, &url.hosts);
        prop_assert_eq!(again.database, database);
        prop_assert!(again.password.is_none() && again.user.is_none());
    }

    #[test]
    fn a_password_is_in_no_message_whatever_is_wrong(
        password in "[a-zA-Z/?#@:%,]{0,4}hunter22[a-zA-Z/?#@:%,]{0,4}", tail in "[a-z:0-9/?=&]{0,12}"
    ) {
        for text in [format!("redis://me:{password}@node1{tail}"), format!("rediss://:{password}@{tail}")] {
            match text.parse::<StoreUrl>() {
                Ok(url) => prop_assert!(!format!("{url} {url:?}").contains("hunter22"), "{url:?}"),
                Err(error) => prop_assert!(!error.to_string().contains("hunter22"), "{error}"),
            }
        }
    }

    #[test]
    fn encoded_text_decodes_to_itself(text in "[^\0]{0,20}") {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        prop_assert_eq!(decode(&encoded), Some(text));
    }
}
