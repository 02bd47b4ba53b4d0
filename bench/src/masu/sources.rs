//! Memory sources of a program in masu's reports, by names that do not depend on the machine.

/// Cuts each `file` of a source down to the part that is the same on every machine: from the workloads' folder on, or
/// to its name.
pub(super) fn shorten(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(values) => values.iter_mut().for_each(shorten),
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    serde_json::Value::String(path) if name == "file" => *path = shortened(path),
                    value => shorten(value),
                }
            }
        }
        _ => {}
    }
}

fn shortened(path: &str) -> String {
    const WORKLOADS: &str = "remote-workloads/";
    let below = path.rfind(&format!("/{WORKLOADS}")).map(|at| &path[at + 1..]);
    let below = below.or_else(|| path.starts_with(WORKLOADS).then_some(path));
    below.or_else(|| path.rsplit('/').next()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_report_names_no_folder_of_the_machine_in_its_sources() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let site = |path: &str| format!(r#"{{"file":{path},"line":7}}"#);
        let paths = [
            r#""/home/me/target/release/remote-workloads/adi.c""#,
            r#""/remote-workloads/old/remote-workloads/task.h""#,
            r#""remote-workloads/sort.c""#,
            r#""/build/my-remote-workloads/x.c""#,
            r#""../sysdeps/memset.S""#,
            "null",
        ];
        let sites = paths.map(site).join(",");
        std::fs::write(
            file.path(),
            format!(r#"{{"faults":7,"sites":[{sites}],"of":{{"sites":[{{"file":"/a/b"}}]}}}}"#),
        )
        .unwrap();
        let report = super::super::local_report(file.path()).unwrap();
        let sites = report.rest["sites"].as_array().unwrap();
        let found: Vec<Option<&str>> = sites.iter().map(|site| site["file"].as_str()).collect();
        let wanted =
            ["remote-workloads/adi.c", "remote-workloads/task.h", "remote-workloads/sort.c", "x.c", "memset.S"];
        assert_eq!(found[..5], wanted.map(Some));
        assert_eq!(
            (found[5], &report.rest["of"]["sites"][0]["file"], &sites[0]["line"]),
            (None, &"b".into(), &7.into())
        );
    }
}
