//! URLs of stores. Any text is read or refused in one line; a password at any position is never repeated.

use std::str::FromStr;

use farmem::store::url::StoreUrl;

/// Text that neither a URL nor a message about one contains by itself.
const PASSWORD: &str = "Zq7Zq7Zq7Zq7";
/// A message quotes at most two pieces, and 40 characters of each.
const MESSAGE_CHARACTERS_MAX: usize = 400;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    if !text.contains(PASSWORD) {
        // The same URL with a password: after a user, and before hosts and options.
        let (scheme, rest) = text.split_once("//").unwrap_or(("", &text));
        let scheme = if scheme == "rediss:" { scheme } else { "redis:" };
        let (user, rest) = rest.split_once('@').unwrap_or(("", rest));
        said_of(&format!("{scheme}//{user}:{PASSWORD}@{rest}"));
    }
    read(&text)
}

/// Output for a URL with a password, and for a refused one.
fn said_of(text: &str) {
    let said = match StoreUrl::from_str(text) {
        Ok(url) => format!("{url} {url:?}"),
        Err(why) => format!("{why} {why:?}"),
    };
    assert!(!said.contains(PASSWORD), "{said}");
}

fn read(text: &str) -> bool {
    let url = match StoreUrl::from_str(text) {
        Ok(url) => url,
        Err(why) => {
            let why = why.to_string();
            assert!(!why.contains(char::is_control), "{why:?}");
            assert!(why.chars().count() <= MESSAGE_CHARACTERS_MAX, "{why}");
            return false;
        }
    };
    assert!(!text.contains(char::is_control));
    if let StoreUrl::Redis(redis) = &url {
        assert!(!redis.hosts.is_empty() && redis.hosts.iter().all(|host| host.port > 0 && !host.name.is_empty()));
        let again = StoreUrl::from_str(&url.to_string());
        let Ok(StoreUrl::Redis(again)) = &again else { panic!("{url} of {text:?} is no URL: {again:?}") };
        assert_eq!((&again.hosts, again.database), (&redis.hosts, redis.database));
        assert_eq!(again.tls.is_some(), redis.tls.is_some());
    }
    true
}
