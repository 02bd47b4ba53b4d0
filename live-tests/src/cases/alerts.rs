//! Alert rules for Prometheus, by its own tool: each alert fires when it should, and on what the service exports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Outcome;
use super::run::said;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    alerts requires [Promtool];
    each_alert_fires;
    each_metric_of_the_alerts_and_of_the_dashboard_is_in_the_guide;
};

fn integrations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../integrations")
}

/// `integrations/prometheus/promtool` with the folder where these tests have it; `None` where there are no sources.
pub(crate) fn promtool() -> Option<Command> {
    let mut command = Command::new(integrations().join("prometheus/promtool").canonicalize().ok()?);
    command.arg(integrations().join("../target/promtool")).stdin(Stdio::null());
    Some(command)
}

fn each_alert_fires(_: &Host) -> Outcome {
    let mut test = promtool().ok_or("no sources")?;
    let tested = said(test.args(["test", "rules"]).arg(integrations().join("prometheus/masu-alerts-test.yml")))?;
    assert_eq!(tested.code(), 0, "{tested:?}");
    let [rules, tests] = ["masu-alerts.yml", "masu-alerts-test.yml"]
        .map(|name| fs::read_to_string(integrations().join("prometheus").join(name)));
    let (rules, tests) = (rules?, tests?);
    let names: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    for name in names {
        // A test that expects no alert has an empty list.
        let mut expectations = tests.split("alertname: ").skip(1);
        let fires = expectations.any(|test| test.starts_with(name) && test.contains("exp_labels:"));
        assert!(fires, "no test in which {name} fires");
    }
    Ok(())
}

fn each_metric_of_the_alerts_and_of_the_dashboard_is_in_the_guide(_: &Host) -> Outcome {
    let guide = include_str!("../../../docs/guide/serve.md");
    for file in ["prometheus/masu-alerts.yml", "grafana/masu.json"] {
        let text = fs::read_to_string(integrations().join(file))?;
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metrics: Vec<&str> = words.filter(|word| word.starts_with("masu_")).collect();
        assert!(metrics.len() > 5, "{file}: {metrics:?}");
        for metric in metrics {
            let row = format!("| `{metric}");
            assert!(guide.lines().any(|line| line.starts_with(&row)), "{file}: {metric} is not in the guide");
        }
    }
    Ok(())
}
