//! Page of `masu serve`, as its client: the metrics, and the process that answers.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::children::free_port;

/// Longest wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A free address for a page, and the settings of the service for it.
///
/// # Errors
/// When no port is free.
pub fn free_address() -> Result<(SocketAddr, String)> {
    let page = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    Ok((page, format!("[serve]\nlisten = \"{page}\"\nhistory = \"off\"\n")))
}

/// The metrics.
///
/// # Errors
/// When nobody answers, or there are none yet.
pub fn metrics(page: SocketAddr) -> Result<String> {
    let mut client = TcpStream::connect(page)?;
    client.set_read_timeout(Some(ANSWER_WITHIN))?;
    client.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {page}\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    client.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("# EOF\n"), "the page answers {text:.100}");
    Ok(text)
}

/// Value of the metric with these labels; 0 if there is none yet.
pub fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

/// The process of the page, started by one of masu's threads.
///
/// # Errors
/// When there is none.
pub fn process_of(serve: u32) -> Result<u32> {
    let threads = fs::read_dir(format!("/proc/{serve}/task"))?;
    let children = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let mut pages = children.filter_map(|text| text.split_whitespace().next()?.parse().ok());
    pages.next().context("masu serve has no process for the page")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_name_and_labels() {
        let text = "# TYPE masu_a gauge\nmasu_a{rule=\"x\"} 7\nmasu_ab 9.5\n# EOF\n";
        assert_eq!((value(text, "masu_a{rule=\"x\"}"), value(text, "masu_ab"), value(text, "masu_a")), (7.0, 9.5, 0.0));
    }
}
