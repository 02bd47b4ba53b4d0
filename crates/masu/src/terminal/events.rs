//! Lines of a long-running command: each event with its time, and a summary at the end.

use std::fmt::Display;
use std::time::Duration;

use linux::untrusted::visible;
use serde::Serialize;

use crate::failure::Failure;

/// An event, `now` after the start: in JSON with `at_s`, to the millisecond.
pub fn event(json: bool, now: Duration, event: &(impl Serialize + Display)) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Line<'a, T: Serialize> {
        at_s: f64,
        #[serde(flatten)]
        what: &'a T,
    }
    if !json {
        return Ok(format!("{:8.1} s  {}", now.as_secs_f64(), visible(&event.to_string())));
    }
    Ok(serde_json::to_string(&Line { at_s: (now.as_secs_f64() * 1e3).round() / 1e3, what: event })?)
}

/// The summary line in JSON.
pub fn end(summary: &impl Serialize) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Line<'a, T: Serialize> {
        event: &'static str,
        end: bool,
        #[serde(flatten)]
        summary: &'a T,
    }
    Ok(serde_json::to_string(&Line { event: "end", end: true, summary })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Pinned {
        event: &'static str,
    }

    impl Display for Pinned {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("it is pinned")
        }
    }

    #[test]
    fn the_same_for_programs_and_for_people() {
        let (now, pinned) = (Duration::from_micros(1_250_900), Pinned { event: "pinned" });
        assert_eq!(event(true, now, &pinned).unwrap(), r#"{"at_s":1.251,"event":"pinned"}"#);
        assert_eq!(event(false, now, &pinned).unwrap(), "     1.3 s  it is pinned");
        #[derive(Serialize)]
        struct Summary {
            plans: u64,
        }
        assert_eq!(end(&Summary { plans: 2 }).unwrap(), r#"{"event":"end","end":true,"plans":2}"#);
    }
}
