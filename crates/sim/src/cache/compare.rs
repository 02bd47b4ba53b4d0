//! All runs of a scenario: every condition at every size of the array, and each program alone, in as many threads as
//! there are CPUs.
//!
//! The assignment of runs to threads has no effect on the results.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use units::Bytes;

use super::counts::Counts;
use super::report::{OfCondition, Point, Report};
use super::run::{self, Broken, Watch};
use super::scenario::{Condition, Open, Partition, Scenario};
use super::situation::{self, ACCESSES_MAX};
use llc::policy::Situation;

/// Unit of work.
#[derive(Clone, Copy, Debug)]
enum Task {
    Alone { point: usize, program: usize },
    Situation { point: usize },
    Condition { point: usize, condition: usize },
}

/// Result of a task.
enum Done {
    Alone(Counts),
    Situation(Box<Situation>),
    Condition(Box<run::Outcome>),
}

/// Accesses of all runs together, to show progress.
pub fn accesses(scenario: &Scenario) -> u64 {
    let of = |array: Option<Bytes>| {
        let array = array.unwrap_or_default();
        let run = scenario.accesses(scenario.warm_up, array) + scenario.accesses(scenario.measured, array);
        let shares = (0..scenario.programs.len()).map(|program| run::share(scenario, array, program));
        let profile: u64 =
            shares.map(|(warm_up, measured)| warm_up.min(ACCESSES_MAX / 2) + measured.min(ACCESSES_MAX)).sum();
        run.saturating_mul(scenario.conditions.len() as u64 + 1).saturating_add(if decides(scenario) {
            profile
        } else {
            0
        })
    };
    scenario.points().into_iter().map(of).fold(0, u64::saturating_add)
}

/// True if a policy needs a situation.
fn decides(scenario: &Scenario) -> bool {
    scenario.conditions.iter().any(|condition| !matches!(condition.partition, Partition::Fixed(_)))
}

/// Makes all runs. When `watch` stops them, the report has the results up to then.
///
/// # Errors
/// When a file is no trace, or a program has no memory.
pub fn compare(scenario: &Scenario, threads: usize, open: Open<'_>, watch: Watch<'_>) -> Result<Report, Broken> {
    let points = scenario.points();
    let mut first = Vec::new();
    for point in 0..points.len() {
        first.extend((0..scenario.programs.len()).map(|program| Task::Alone { point, program }));
        first.extend(decides(scenario).then_some(Task::Situation { point }));
    }
    let mut alone = vec![vec![None; scenario.programs.len()]; points.len()];
    let mut situations: Vec<Option<Box<Situation>>> = vec![None; points.len()];
    let array = |point: usize| points[point].unwrap_or_default();
    let mut stopped = false;
    let work = |task: Task| match task {
        Task::Alone { point, program } => run::alone(scenario, array(point), program, open, watch).map(Done::Alone),
        Task::Situation { point } => {
            situation::situation(scenario, array(point), open, watch).map(|found| Done::Situation(Box::new(found)))
        }
        Task::Condition { .. } => Err(Broken::Stopped),
    };
    for (task, done) in all(&first, threads, &work) {
        match (task, done) {
            (Task::Alone { point, program }, Ok(Done::Alone(counts))) => alone[point][program] = Some(counts),
            (Task::Situation { point }, Ok(Done::Situation(found))) => situations[point] = Some(found),
            (_, Err(Broken::Stopped) | Ok(_)) => stopped = true,
            (_, Err(broken)) => return Err(broken),
        }
    }
    let conditions = scenario.conditions.len();
    let second: Vec<Task> = (0..points.len())
        .flat_map(|point| (0..conditions).map(move |condition| Task::Condition { point, condition }))
        .filter(|_| !stopped)
        .collect();
    let work = |task: Task| match task {
        Task::Condition { point, condition } => {
            let condition = &scenario.conditions[condition];
            let told = told(condition, situations[point].as_deref());
            let outcome = run::beside_each_other(scenario, array(point), condition, told.as_ref(), open, watch);
            outcome.map(|outcome| Done::Condition(Box::new(outcome)))
        }
        Task::Alone { .. } | Task::Situation { .. } => Err(Broken::Stopped),
    };
    let mut found: Vec<Point> =
        points.iter().map(|array| Point { array_bytes: *array, conditions: Vec::new() }).collect();
    for (task, done) in all(&second, threads, &work) {
        match (task, done) {
            (Task::Condition { point, condition }, Ok(Done::Condition(outcome))) => {
                let of = OfCondition::new(scenario, condition, &outcome, &alone[point]);
                found[point].conditions.push(of);
            }
            (_, Err(Broken::Stopped) | Ok(_)) => stopped = true,
            (_, Err(broken)) => return Err(broken),
        }
    }
    Ok(Report::new(scenario, found, !stopped))
}

fn told(condition: &Condition, situation: Option<&Situation>) -> Option<Situation> {
    situation.map(|known| if condition.sharing { known.clone() } else { situation::without_sharing(known) })
}

/// Executes all tasks, and returns their results in order. After a failure no further task is started.
fn all(
    tasks: &[Task],
    threads: usize,
    work: &(dyn Fn(Task) -> Result<Done, Broken> + Sync),
) -> Vec<(Task, Result<Done, Broken>)> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done: Mutex<Vec<(usize, Result<Done, Broken>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(nth) else { break };
                    let result = work(*task);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((nth, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(nth, result)| (tasks[nth], result)).collect()
}
