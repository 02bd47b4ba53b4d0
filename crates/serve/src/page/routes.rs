//! Answers of the page. No connection, clock or file: a state and a question come in, an answer goes out.

use std::cell::OnceCell;
use std::net::IpAddr;

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::{Frame, Now};
use crate::metrics::metrics;
use crate::series::{AMOUNTS, Range, Sample, Series};

/// Nothing is loaded but the page's own files.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Fixed files: path, type and content.
const FILES: [(&str, &str, &str); 5] = [
    ("/", HTML, include_str!("../../page/index.html")),
    ("/app.js", SCRIPT, include_str!("../../page/app.js")),
    ("/chart.js", SCRIPT, include_str!("../../page/chart.js")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../../page/style.css")),
    ("/favicon.svg", "image/svg+xml", include_str!("../../page/favicon.svg")),
];

/// State and course so far.
#[derive(Debug, Default)]
pub struct State {
    now: Option<Now>,
    /// All clients share one copy.
    json: OnceCell<Bytes>,
    metrics: OnceCell<Bytes>,
    series: Series,
}

/// Question of a client.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// Method.
    pub method: &'q str,
    /// Path, escaped.
    pub path: &'q str,
    /// Query, escaped.
    pub query: Option<&'q str>,
    /// Name by which the client reached the page.
    pub host: Option<&'q str>,
    /// The socket is of a network.
    pub is_of_network: bool,
}

/// Answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Type of the content.
    pub kind: &'static str,
    /// Content.
    pub body: Bytes,
}

impl State {
    /// Takes a line of the service.
    pub fn take(&mut self, frame: Frame) {
        match frame {
            // The history is read while the first states come: what is later goes behind it.
            Frame::Past(samples) => {
                self.series = Series::default();
                let now = self.now.iter().map(|now| Sample::of(&now.snapshot.groups, now.at));
                samples.into_iter().chain(now).for_each(|sample| self.series.add(&sample));
            }
            Frame::Now(now) => {
                self.series.add(&Sample::of(&now.snapshot.groups, now.at));
                (self.json, self.metrics) = (OnceCell::new(), OnceCell::new());
                self.now = Some(*now);
            }
        }
    }
}

/// Answers a question.
pub fn answer(state: &State, question: &Question<'_>) -> Answer {
    if !matches!(question.method, "GET" | "HEAD") {
        return fault(StatusCode::METHOD_NOT_ALLOWED, "the page changes nothing: GET and HEAD alone");
    }
    if question.is_of_network && !question.host.is_some_and(is_address) {
        let text = "reach the page by an address, or as localhost: a name may be of another site (DNS rebinding)";
        return fault(StatusCode::MISDIRECTED_REQUEST, text);
    }
    if let Some((_, kind, body)) = FILES.into_iter().find(|(path, ..)| *path == question.path) {
        return Answer { status: StatusCode::OK, kind, body: Bytes::from_static(body.as_bytes()) };
    }
    if question.path == "/api/v1/history" {
        return history(&state.series, question.query.unwrap_or_default());
    }
    let of_state: fn(&State, &Now) -> (&'static str, Bytes) = match question.path {
        "/api/v1/state" => |state, now| {
            let text = state.json.get_or_init(|| serde_json::to_vec(now).unwrap_or_default().into());
            (JSON, text.clone())
        },
        "/metrics" => |state, now| {
            let text = state.metrics.get_or_init(|| metrics(&now.snapshot, now.max_series).into());
            (OPENMETRICS, text.clone())
        },
        _ => {
            let text = "not here; there are /, /metrics, /api/v1/state and /api/v1/history";
            return fault(StatusCode::NOT_FOUND, text);
        }
    };
    let Some(now) = &state.now else {
        return fault(StatusCode::SERVICE_UNAVAILABLE, "the first measurement is not complete");
    };
    let (kind, body) = of_state(state, now);
    Answer { status: StatusCode::OK, kind, body }
}

fn fault(status: StatusCode, text: &str) -> Answer {
    Answer { status, kind: TEXT, body: format!("{text}\n").into() }
}

/// Whether a Host header names an address, or this host.
fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _port)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

/// Course of one group, or of the usage of all.
fn history(series: &Series, query: &str) -> Answer {
    let value = |key: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(name, _)| name == key).map(|(_, value)| value.into_owned())
    };
    let Some(range) = value("range").map_or(Some(Range::Hour), |name| Range::named(&name)) else {
        return fault(StatusCode::BAD_REQUEST, "range: expected 1h, 24h or 7d");
    };
    let group = value("group");
    let (at, groups) = series.of(range, group.as_deref());
    let amounts = if group.is_some() { &AMOUNTS[..] } else { &AMOUNTS[..1] };
    let groups: Vec<Value> = groups
        .map(|(name, points)| {
            let mut of = json!({ "group": name });
            for (number, amount) in amounts.iter().enumerate() {
                let values = points.iter().map(|point| point.and_then(|point| point.bytes(number)));
                of[*amount] = json!(values.collect::<Vec<_>>());
            }
            of
        })
        .collect();
    let found = json!({
        "range": range.name(), "every_s": range.every_s(), "at": at.collect::<Vec<_>>(), "groups": groups,
    });
    Answer { status: StatusCode::OK, kind: JSON, body: found.to_string().into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::tests::snapshot;

    const GET: Question<'static> =
        Question { method: "GET", path: "/", query: None, host: Some("127.0.0.1:9716"), is_of_network: true };

    fn state() -> State {
        let mut state = State::default();
        for at in [1000, 1010] {
            let now = Now { version: "1".to_owned(), at, max_series: 5000, snapshot: snapshot() };
            state.take(Frame::Now(Box::new(now)));
        }
        state
    }

    fn of(path: &str, query: Option<&str>) -> (u16, Value) {
        let answer = answer(&state(), &Question { path, query, ..GET });
        (answer.status.as_u16(), serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    #[test]
    fn the_state_and_the_metrics_are_those_of_the_last_frame() {
        let (status, found) = of("/api/v1/state", None);
        assert_eq!((status, &found["at"], &found["groups"]["left_out"]), (200, &json!(1010), &json!(3)));
        assert_eq!(found["groups"]["groups"][1]["anonymous_bytes"], json!(3 << 20));
        let metrics = answer(&state(), &Question { path: "/metrics", ..GET });
        assert!(metrics.body.ends_with(b"# EOF\n") && metrics.kind.starts_with("application/openmetrics-text"));
        let early = answer(&State::default(), &Question { path: "/metrics", ..GET });
        assert_eq!(early.status, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn the_course_of_a_group_has_all_amounts_and_that_of_all_the_usage() {
        let (status, all) = of("/api/v1/history", None);
        assert_eq!(
            (status, &all["at"], &all["groups"][0]["usage"]),
            (200, &json!([1000, 1010]), &json!([8 << 20, 8 << 20]))
        );
        assert_eq!(all["groups"][0].get("anonymous"), None);
        let (_, one) = of("/api/v1/history", Some("range=24h&group=%2Fa"));
        assert_eq!((one["groups"].as_array().map(Vec::len), &one["groups"][0]["group"]), (Some(1), &json!("/a")));
        assert_eq!(one["groups"][0]["anonymous"], json!([3 << 20]));
        assert_eq!(of("/api/v1/history", Some("range=1y")).0, 400);
        assert_eq!(of("/api/v1/history", Some("group=/none")).1["groups"], json!([]));
    }

    #[test]
    fn the_time_before_the_start_is_before_the_first_state() {
        let mut state = state();
        let before = Sample { at: 500, groups: vec![("/a".to_owned(), crate::series::Point([Some(1); 9]))] };
        state.take(Frame::Past(vec![before]));
        let answer = answer(&state, &Question { path: "/api/v1/history", ..GET });
        let found: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&found["at"], &found["groups"][0]["usage"]), (&json!([500, 1010]), &json!([4096, 8 << 20])));
    }

    #[test]
    fn nothing_is_changed_and_no_other_site_reads() {
        let status = |question: Question<'_>| answer(&state(), &question).status.as_u16();
        assert_eq!(status(GET), 200);
        assert_eq!(status(Question { method: "POST", ..GET }), 405);
        assert_eq!(status(Question { path: "/../etc/passwd", ..GET }), 404);
        for (host, expected) in [
            (Some("127.0.0.1:9716"), 200),
            (Some("[::1]:9716"), 200),
            (Some("localhost"), 200),
            (Some("10.0.0.7:9716"), 200),
            (Some("evil.example:9716"), 421),
            (Some(""), 421),
            (None, 421),
        ] {
            assert_eq!(status(Question { host, ..GET }), expected, "{host:?}");
        }
        assert_eq!(status(Question { host: Some("masu"), is_of_network: false, ..GET }), 200);
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for (path, _, text) in FILES {
            let links = text.matches("://").count() - text.matches("http://www.w3.org/").count();
            assert_eq!(links, 0, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_question_has_an_answer(method in "[A-Z]{0,7}", path in "(/[a-z0-9%./]{0,20}|/api/v1/history|.{0,9})", query in proptest::option::of(".{0,40}"), host in proptest::option::of(".{0,20}")) {
            let question = Question { method: &method, path: &path, query: query.as_deref(), host: host.as_deref(), is_of_network: true };
            let answer = answer(&state(), &question);
            prop_assert!(answer.status.is_success() || answer.status.is_client_error());
        }
    }
}
