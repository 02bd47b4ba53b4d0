//! `masu run --local`: its report, for people and for programs.

use serde_json::Value;

use super::Outcome;
use super::run::{Folder, Report, Result, said};
use super::run_hard::compile;
use super::run_local::{memory_checker, paged};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_report requires [MasuCommand, PagerLibrary, UserFaults, CCompiler];
    the_report_has_the_promised_words;
    sections_that_are_marked_get_units_of_their_own;
    what_faults_is_named_through_a_separate_debug_file;
    what_faults_is_named_by_function_file_and_line;
    what_a_library_has_beyond_its_data_is_paged;
    memory_that_is_not_paged_is_named;
    forked_copies_are_named_with_their_memory;
    programs_at_once_are_counted_with_their_sum;
    the_faults_of_all_places_are_all_faults;
    a_program_that_thrashes_is_told_what_is_enough;
    a_report_that_cannot_be_written_leaves_the_status [Shell];
};

/// The fields that users were promised; more may come.
const FIELDS: [&str; 10] = [
    "elapsed_s",
    "stall_s",
    "local_bytes",
    "paged_bytes",
    "peak_resident_bytes",
    "faults",
    "faults_in_victim_queue",
    "bytes_in",
    "bytes_out",
    "transfer_bytes_median",
];

/// Report of a program that ends well, and the program's output.
fn reported(options: &[&str], command: &[&str]) -> Result<(Value, String)> {
    let report = Report::new("local-report");
    let said = said(&mut paged(&[options, &["--report", report.path(), "--json"]].concat(), command)?)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{options:?}: {said:?}");
    Ok((report.read()?, said.out))
}

fn number(of: &Value) -> Result<u64> {
    of.as_u64().ok_or_else(|| format!("no number: {of}").into())
}

/// Its transfer size was changed at these times to these sizes; the last is the one in force.
fn has_its_history(of: &Value) -> bool {
    let units = of["units"].as_array().map_or(&[][..], Vec::as_slice);
    let last = units.last().is_some_and(|last| last["unit_bytes"] == of["unit_bytes"]);
    last && units.iter().all(|unit| unit["unit_bytes"].as_u64() >= Some(4096) && unit["since_s"].is_number())
}

/// For people and for programs.
fn the_report_has_the_promised_words(_: &Host) -> Outcome {
    let folder = Folder::make("local-report")?;
    let memory_checker = memory_checker(&folder)?;
    let json = said(&mut paged(&["--local", "2MiB", "--report", "-", "--json"], &[&memory_checker, "8", "0.1"])?)?;
    let report: Value = serde_json::from_str(&json.err)?;
    for name in FIELDS {
        assert!(report[name].is_number(), "{name}: {report}");
    }
    let rate = report["victim_queue_hit_rate"].as_f64();
    assert!(rate.is_some_and(|rate| (0.0..=1.0).contains(&rate)), "it was pushed out and came back: {report}");
    let sites = report["sites"].as_array().ok_or("no sites")?;
    assert!(!sites.is_empty() && sites.iter().all(has_its_history), "{report}");
    let what_if = report["what_if"].as_array().ok_or("no what_if")?;
    let local: Vec<_> = what_if.iter().map(|other| other["local_bytes"].as_u64()).collect();
    assert_eq!(local, [Some(1 << 20), Some(4 << 20)], "half and double: {report}");
    let [half, double] = [number(&what_if[0]["faults"])?, number(&what_if[1]["faults"])?];
    assert!(half >= double, "{report}");
    let text = said(&mut paged(&["--local", "2MiB", "--report", "-"], &[&memory_checker, "8", "0.1"])?)?;
    assert!(text.err.contains(" local, at most ") && text.err.contains("first touches"), "{}", text.err);
    let quiet = said(&mut paged(&["--local", "2MiB"], &[&memory_checker, "8", "0.1"])?)?;
    assert_eq!(quiet.err, "", "no report was asked for, and there is no terminal");
    Ok(())
}

/// Two ways through 32 MiB, in functions of their own, which are marked as sections.
const PARTS: &str = "
#include <masu.h>
#include <stdio.h>
#include <stdlib.h>
enum { PAGES = 8192, WORDS = PAGES * 512 };
static unsigned long sum, seed = 1;
__attribute__((noinline)) static void goes_in_order(unsigned long *memory)
{
    swpin_countstart(1);
    for (unsigned long word = 0; word < WORDS / 16; word += 64)
        sum += memory[word]++; // in order
    swpin_refresh(1);
}
__attribute__((noinline)) static void jumps_about(unsigned long *memory)
{
    swpin_countstart(2);
    for (int n = 0; n < 500; n++) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        sum += memory[(seed >> 33) % PAGES * 512]; // anywhere
    }
    swpin_refresh(2);
}
int main(void)
{
    unsigned long *memory = malloc(WORDS * sizeof *memory);
    for (unsigned long word = 0; word < WORDS; word += 64) memory[word] = word;
    for (int round = 0; round < 8; round++) {
        goes_in_order(memory);
        jumps_about(memory);
    }
    printf(\"%lu\\n\", sum);
    return 0;
}
";

const HEADERS: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../crates/hugepages/libmasu/include");

/// Sequential sections are worth large transfer sizes, and scattered ones are not; without sections there is one
/// transfer size for both.
fn sections_that_are_marked_get_units_of_their_own(_: &Host) -> Outcome {
    let folder = Folder::make("local-sections")?;
    let parts = compile(&folder, "cc", "parts", PARTS, &[HEADERS])?;
    let (marked, answer) = reported(&["--local", "4MiB", "--sections", "marked"], &[&parts])?;
    let sections = marked["sections"].as_array().ok_or("no sections")?;
    let unit = |number: u64| {
        let section = sections.iter().find(|section| section["section"] == number);
        section.filter(|section| has_its_history(section)).and_then(|section| section["unit_bytes"].as_u64())
    };
    assert_eq!((sections.len(), &marked["sites"]), (2, &serde_json::json!([])), "{marked}");
    assert!(sections.iter().all(|section| section["faults"].as_u64() > Some(0)), "{marked}");
    assert_eq!(unit(2), Some(16 << 10), "the paper's least: {marked}");
    assert!(unit(1) > Some(64 << 10), "{marked}");
    assert_eq!(marked["transfer_bytes_median"], 16 << 10, "most faults are where it jumps about: {marked}");
    for (unit, bytes) in [("4KiB", 4 << 10), ("16KiB", 16 << 10)] {
        let options = ["--local", "4MiB", "--sections", "off", "--unit", unit];
        let (fixed, same) = reported(&options, &[&parts])?;
        assert_eq!(
            (&fixed["transfer_bytes_median"], &fixed["sections"]),
            (&bytes.into(), &serde_json::json!([])),
            "{fixed}"
        );
        assert_eq!(same, answer);
        assert!(number(&fixed["faults"])? > number(&marked["faults"])?, "{fixed}\n{marked}");
    }
    // Only if it is asked for.
    let (single, same) = reported(&["--local", "4MiB", "--sections", "marked", "--base", "4KiB"], &[&parts])?;
    let single = single["sections"].as_array().ok_or("no sections")?;
    assert!(single.iter().any(|section| section["unit_bytes"].as_u64() < Some(16 << 10)), "{single:?}");
    assert_eq!(same, answer);
    let options = ["--local", "4MiB", "--sections", "marked", "--report", "-"];
    let text = said(&mut paged(&options, &[&parts])?)?;
    for section in ["section 1", "section 2"] {
        assert!(text.err.lines().any(|line| line.ends_with(section)), "{}", text.err);
    }
    Ok(())
}

/// With debug information; and no transfer size is smaller than configured.
fn what_faults_is_named_by_function_file_and_line(_: &Host) -> Outcome {
    let folder = Folder::make("local-sites")?;
    let parts = compile(&folder, "cc", "parts", PARTS, &[HEADERS, "-g"])?;
    let (report, _) = reported(&["--local", "4MiB", "--base", "16KiB"], &[&parts])?;
    let sites = report["sites"].as_array().ok_or("no sites")?;
    for (function, comment) in [("goes_in_order", "// in order"), ("jumps_about", "// anywhere")] {
        let line = 1 + PARTS.lines().position(|line| line.ends_with(comment)).ok_or("no such line")?;
        let is_there = sites.iter().any(|site| {
            site["function"] == function
                && site["file"].as_str().is_some_and(|file| file.ends_with("/parts.c"))
                && site["line"] == line
                && site["faults"].as_u64() > Some(0)
        });
        assert!(is_there, "{function}, line {line}: {report}");
    }
    assert!(sites.iter().all(|site| site["unit_bytes"].as_u64() >= Some(16 << 10)), "{report}");
    let text = said(&mut paged(&["--local", "4MiB", "--report", "-"], &[&parts])?)?;
    assert!(text.err.contains("jumps_about (") && text.err.contains("/parts.c:"), "{}", text.err);
    Ok(())
}

/// Stripped, as distributions do: the debug file is named by the link in the program. Without it the program's name
/// stands there, and a debug file of another build is not taken.
fn what_faults_is_named_through_a_separate_debug_file(_: &Host) -> Outcome {
    let folder = Folder::make("local-debug-file")?;
    let parts = compile(&folder, "cc", "parts", PARTS, &[HEADERS, "-g"])?;
    let objcopy = |arguments: &[&str]| -> Outcome {
        let done = std::process::Command::new("objcopy").current_dir(&folder.0).args(arguments).status()?;
        if done.success() { Ok(()) } else { Err(format!("objcopy {arguments:?}").into()) }
    };
    std::fs::create_dir(folder.0.join(".debug"))?;
    objcopy(&["--only-keep-debug", "parts", ".debug/parts.debug"])?;
    // objcopy finds the file for its checksum by this path, and keeps the name alone.
    objcopy(&[
        "--strip-all",
        "--remove-section=.note.gnu.build-id",
        "--add-gnu-debuglink=.debug/parts.debug",
        "parts",
    ])?;
    let named = |function: &str| -> Result<Option<Value>> {
        let (report, _) = reported(&["--local", "4MiB"], &[&parts])?;
        let sites = report["sites"].as_array().ok_or("no sites")?;
        Ok(sites.iter().find(|site| site["function"].as_str().is_some_and(|name| name.starts_with(function))).cloned())
    };
    let site = named("jumps_about")?.ok_or("no jumps_about")?;
    assert!(site["file"].as_str().is_some_and(|file| file.ends_with("/parts.c")) && site["line"].is_u64(), "{site}");
    std::fs::write(folder.0.join(".debug/parts.debug"), "of another build")?;
    assert_eq!(named("jumps_about")?, None);
    let site = named("parts+0x")?.ok_or("no parts+0x")?;
    assert_eq!((&site["file"], &site["program"]), (&Value::Null, &"parts".into()));
    Ok(())
}

/// 16 MiB of a library, which the loader maps and the program never asks for.
fn what_a_library_has_beyond_its_data_is_paged(_: &Host) -> Outcome {
    const LIBRARY: &str = "
static unsigned char many[16 << 20];
unsigned char *all_of_it(unsigned long *bytes) { *bytes = sizeof many; return many; }
";
    const PROGRAM: &str = "
#include <stdio.h>
unsigned char *all_of_it(unsigned long *bytes);
int main(void)
{
    unsigned long bytes;
    unsigned char *many = all_of_it(&bytes);
    for (unsigned long i = 0; i < bytes; i += 512) many[i] = i >> 9;
    for (unsigned long i = 0; i < bytes; i += 512) if (many[i] != (i >> 9 & 255)) return 3;
    puts(\"right\");
    return 0;
}
";
    let folder = Folder::make("local-library")?;
    let library = compile(&folder, "cc", "libmany.so", LIBRARY, &["-shared", "-fPIC"])?;
    let program = compile(&folder, "cc", "program", PROGRAM, &[&library])?;
    let (report, answer) = reported(&["--local", "2MiB"], &[&program])?;
    assert_eq!((answer.as_str(), &report["notes"]), ("right\n", &serde_json::json!([])), "{report}");
    assert!(number(&report["paged_bytes"])? >= 16 << 20 && number(&report["bytes_in"])? > 12 << 20, "{report}");
    assert!(number(&report["peak_resident_bytes"])? <= 2 << 20, "{report}");
    Ok(())
}

/// 48 MiB of shared memory beside a limit of 16 MiB.
fn memory_that_is_not_paged_is_named(_: &Host) -> Outcome {
    const SHARED: &str = r#"
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
    size_t bytes = 48 << 20;
    int fd = memfd_create("test-heap", 0);
    if (ftruncate(fd, bytes)) return 3;
    // Two views of the same memory, as of a garbage collector.
    char *one = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *other = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(one, 1, bytes);
    memset(other, 2, bytes);
    usleep(800000);
    return 0;
}
"#;
    let folder = Folder::make("local-shared")?;
    let shared = compile(&folder, "cc", "shared", SHARED, &[])?;
    let report = Report::new("local-shared");
    let said = said(&mut paged(&["--local", "16MiB", "--report", report.path(), "--json"], &[&shared])?)?;
    assert!(said.code() == 0 && said.err.contains("memory that is not paged"), "{said:?}");
    let report = report.read()?;
    let not_paged = &report["programs"][0]["not_paged"];
    let bytes = number(&not_paged["shared_bytes"])?;
    assert!((47 << 20..56 << 20).contains(&bytes), "{report}");
    assert!(not_paged["largest"].as_str().is_some_and(|name| name.contains("test-heap")), "{report}");
    Ok(())
}

/// Two copies of 48 MiB beside a limit of 16 MiB. The second is a copy of a third one, which has ended.
fn forked_copies_are_named_with_their_memory(_: &Host) -> Outcome {
    const COPIES: &str = r#"
#include <stdlib.h>
#include <unistd.h>
static void fill(size_t bytes)
{
    volatile char *memory = malloc(bytes);
    for (size_t at = 0; at < bytes; at += 4096) memory[at] = 1;
}
static void touches(void)
{
    fill(48 << 20);
    sleep(2);
    _exit(0);
}
int main(void)
{
    fill(4 << 20);
    int child = fork();
    if (child < 0) return 3;
    if (child == 0) touches();
    child = fork();
    if (child < 0) return 3;
    if (child == 0) {
        if (fork() == 0) touches();
        _exit(0);
    }
    sleep(3);
    return 0;
}
"#;
    let folder = Folder::make("local-copies")?;
    let copies = compile(&folder, "cc", "copies", COPIES, &[])?;
    let report = Report::new("local-copies");
    let json = said(&mut paged(&["--local", "16MiB", "--report", report.path(), "--json"], &[&copies])?)?;
    let remark = "of copies (process ";
    assert!(json.code() == 0 && json.err.contains(remark) && json.err.contains("not limited by --local"), "{json:?}");
    let report = report.read()?;
    let (at_once, not_paged) = (&report["at_once"], &report["programs"][0]["not_paged"]);
    for of in [at_once, not_paged] {
        assert!((2..=3).contains(&number(&of["copies"])?), "the third one ends at once: {report}");
        assert!((90 << 20..112 << 20).contains(&number(&of["copies_bytes"])?), "{report}");
    }
    assert_eq!((&report["processes"], &at_once["programs"]), (&1.into(), &1.into()), "{report}");
    let notes = report["notes"].as_array().ok_or("no notes")?.iter().filter_map(Value::as_str);
    assert_eq!(notes.filter(|note| note.starts_with("a forked copy is not paged")).count(), 1, "{report}");
    let text = said(&mut paged(&["--local", "16MiB", "--report", "-"], &[&copies])?)?.err;
    let line =
        text.lines().find(|line| line.starts_with("  not paged, on top of --local: copies (")).ok_or("no line")?;
    assert!(line.contains(" MiB of ") && line.contains("forked copies"), "{text}");
    let quiet = said(&mut paged(&["--local", "16MiB", "-q"], &[&copies])?)?;
    assert_eq!((quiet.code(), quiet.err.as_str()), (0, ""));
    Ok(())
}

/// Two programs of a shell, which waits for both.
fn programs_at_once_are_counted_with_their_sum(_: &Host) -> Outcome {
    let report = Report::new("local-at-once");
    let options = ["--local", "4MiB", "--report", report.path(), "--json"];
    let said = said(&mut paged(&options, &["/bin/sh", "-c", "sleep 0.5 & sleep 0.5; wait"])?)?;
    assert!(said.code() == 0 && said.err.contains("programs at once may have"), "{said:?}");
    let report = report.read()?;
    let at_once = &report["at_once"];
    assert_eq!((number(&at_once["programs"])?, number(&at_once["local_bytes"])?), (3, 12 << 20), "{report}");
    assert_eq!(report["programs"].as_array().map(Vec::len), Some(3), "{report}");
    Ok(())
}

/// System calls with arguments in a small mapping, which is not paged, beside memory that is.
fn the_faults_of_all_places_are_all_faults(_: &Host) -> Outcome {
    const BESIDE: &str = "
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, null = open(\"/dev/null\", O_WRONLY);
    size_t bytes = 24 << 20;
    char *many = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    char *few = mmap(many - 4096, 4096, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (null < 0 || many == MAP_FAILED || few == MAP_FAILED) return 3;
    for (size_t at = 0; at < bytes; at += 512) {
        many[at] = 1;
        if (at % 4096 == 0 && write(null, few, 8) != 8) return 4;
    }
    return 0;
}
";
    let folder = Folder::make("local-places")?;
    let program = compile(&folder, "cc", "beside", BESIDE, &[])?;
    let (report, _) = reported(&["--local", "8MiB"], &[&program])?;
    let places = report["sites"].as_array().ok_or("no sites")?;
    let sum = places.iter().map(|place| number(&place["faults"])).sum::<Result<u64>>()?;
    assert!(sum > 0 && sum <= number(&report["faults"])?, "{sum}: {report}");
    let text = said(&mut paged(&["--local", "8MiB", "--report", "-"], &[&program])?)?.err;
    let faults = text.lines().find_map(|line| line.trim().strip_prefix("faults ")?.split_once(':')?.0.parse().ok());
    let rows = text.lines().skip_while(|line| !line.ends_with("where")).skip(1);
    let column = rows.map_while(|row| row.split_whitespace().next()?.parse::<u64>().ok());
    assert_eq!(Some(column.sum::<u64>()), faults, "{text}");
    Ok(())
}

/// A loop over 24 MiB with 8 MiB: with the size that the report names, it fetches as little as the report says.
fn a_program_that_thrashes_is_told_what_is_enough(_: &Host) -> Outcome {
    const LOOP: &str = "
#include <stdlib.h>
int main(void)
{
    size_t bytes = 24 << 20;
    volatile char *memory = malloc(bytes);
    for (int round = 0; round < 40; round++)
        for (size_t at = 0; at < bytes; at += 4096) memory[at]++;
    return 0;
}
";
    let folder = Folder::make("local-loop")?;
    let program = compile(&folder, "cc", "loop", LOOP, &[])?;
    let (report, _) = reported(&["--local", "8MiB", "--unit", "64KiB"], &[&program])?;
    let set = &report["working_set"];
    let (bytes, enough) = (number(&set["bytes"])?, number(&set["local_bytes"])?);
    // Within a quarter.
    assert!((23 << 20..=30 << 20).contains(&bytes), "{report}");
    let size = format!("{}MiB", enough >> 20);
    let (then, _) = reported(&["--local", &size, "--unit", "64KiB"], &[&program])?;
    let kinds = ["faults_in_victim_queue", "faults_in_flight", "faults_first"];
    let others = kinds.iter().map(|kind| number(&then[*kind])).sum::<Result<u64>>()?;
    let stored = number(&then["faults"])? - others;
    assert!(stored <= 2 * number(&set["faults"])? + 50, "{stored} with {size}: {report}");
    // Each of two has its own sentence.
    let two = format!("{program} & {program} & wait");
    let options = ["--local", "8MiB", "--unit", "64KiB", "--report", "-"];
    let text = said(&mut paged(&options, &["/bin/sh", "-c", &two])?)?.err;
    assert_eq!(text.lines().filter(|line| line.contains(") goes round in ")).count(), 2, "{text}");
    Ok(())
}

/// A full device, and a reader that has gone.
fn a_report_that_cannot_be_written_leaves_the_status(_: &Host) -> Outcome {
    for options in [&["--report", "/dev/full"][..], &["--report", "/dev/full", "--json"]] {
        let said = said(&mut paged(&[&["--local", "4MiB"], options].concat(), &["/bin/sh", "-c", "exit 7"])?)?;
        assert_eq!(said.code(), 7, "{said:?}");
        assert!(said.err.contains("cannot write the report"), "{said:?}");
    }
    Ok(())
}
