//! Checks that dependencies point down: no crate uses a crate of a higher layer. Within a crate, no room (a folder or
//! file with a place in the crate's order) uses a higher room.

pub mod compiler;
mod graph;
mod modules;
mod plans;
mod rooms;
mod source;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde_json::Value;

use super::{Context, verdict::Check};
use crate::{
    failure::{Doing, Failure, Result},
    places::Places,
};
use compiler::Use;
use plans::PLANS;
use rooms::Plan;
use source::Source;

/// The layer of each crate, from the bottom. A crate of the workspace that is not listed is an error.
const LAYERS: &[(&str, u32)] = &[
    ("quire-heap", 0),
    ("quire-sync", 1),
    ("quire-lookup", 2),
    ("quire-vm", 2),
    ("quire-task", 3),
    ("quire-ipc", 3),
    ("quire-pmap", 3),
    ("quire-pmap-x86_64", 4),
    ("quire-pmap-sv39", 4),
    ("quire-fs", 5),
    ("quire-drivers", 5),
    ("quire-net", 6),
    ("quire-linux-state", 7),
    ("quire-linux", 8),
    ("quire-procfs", 9),
    ("quire-hosted", 8),
    ("quire-kernel", 10),
    ("quire-plugin", 0),
    ("quire-results", 0),
    ("quire-report", 1),
    ("quire-lab", 11),
    ("quire-fuzz", 11),
    ("xtask", 11),
];

/// Pairs (crate, lower crate). The layers would allow the crate to use the lower one, but the design forbids it. The
/// primitives, the memory core, the scheduler and the page tables use no heap. The memory core and the scheduler meet
/// only through the wait trait of `sync`. The page tables do not use the scheduler. Device drivers use neither files
/// nor system calls.
const APART: &[(&str, &str)] = &[
    ("quire-sync", "quire-heap"),
    ("quire-vm", "quire-heap"),
    ("quire-vm", "quire-lookup"),
    ("quire-task", "quire-heap"),
    ("quire-task", "quire-lookup"),
    ("quire-pmap", "quire-heap"),
    ("quire-ipc", "quire-vm"),
    ("quire-task", "quire-vm"),
    ("quire-pmap", "quire-task"),
    ("quire-pmap-x86_64", "quire-task"),
    ("quire-pmap-x86_64", "quire-pmap-sv39"),
    ("quire-fs", "quire-pmap-x86_64"),
    ("quire-fs", "quire-pmap"),
    ("quire-drivers", "quire-pmap-x86_64"),
    ("quire-drivers", "quire-pmap"),
    ("quire-net", "quire-pmap-x86_64"),
    ("quire-net", "quire-pmap"),
    ("quire-net", "quire-drivers"),
    ("quire-linux-state", "quire-pmap-x86_64"),
    ("quire-linux-state", "quire-pmap"),
    ("quire-linux-state", "quire-drivers"),
    ("quire-linux", "quire-pmap-x86_64"),
    ("quire-linux", "quire-pmap"),
    ("quire-procfs", "quire-pmap-x86_64"),
    ("quire-procfs", "quire-pmap"),
    ("quire-procfs", "quire-drivers"),
    ("quire-kernel", "quire-pmap-sv39"),
    ("quire-linux", "quire-drivers"),
];

/// The checks' names: one for the crates, and one for the rooms of each crate.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(std::iter::once(NAME.to_owned()).chain(PLANS.iter().map(rooms_name)).collect())
}

const NAME: &str = "layers/arrows between crates point down";

fn rooms_name(plan: &Plan) -> String {
    format!("layers/arrows between rooms of {} point down", plan.krate)
}

/// Reads the workspace's dependencies from cargo, and those of rooms from the compiler and the source, and checks them.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.selects(NAME) {
        let wrong = judge(&arrows(&metadata(context.places)?)?);
        done(if wrong.is_empty() { Check::passed(NAME) } else { Check::failed(NAME, wrong.join("\n")) });
    }
    let plans: Vec<&Plan> = PLANS.iter().filter(|plan| context.selects(&rooms_name(plan))).collect();
    if plans.is_empty() {
        return Ok(());
    }
    let known = compiler::uses(&compiler::build(context.places)?)?;
    for plan in plans {
        let (source, uses) = all_uses(context.places, plan, &known)?;
        let wrong = plan.judge(&source, &uses);
        done(Check::of(rooms_name(plan), if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }));
    }
    Ok(())
}

/// Does `./quire test layers --graph`.
pub fn show(places: &Places) -> Result<()> {
    let known = compiler::uses(&compiler::build(places)?)?;
    for plan in PLANS {
        let (source, uses) = all_uses(places, plan, &known)?;
        graph::show(plan, &source, &uses, &places.target.join("layers"))?;
    }
    Ok(())
}

/// Returns a crate's source, and which of its modules use which: as the compiler shows it, and as the source shows it.
fn all_uses(places: &Places, plan: &Plan, known: &BTreeSet<Use>) -> Result<(Source, BTreeSet<Use>)> {
    let source = source::read(&places.root, plan.krate)?;
    let own = known.iter().filter(|u| u.from.krate == plan.krate && u.to.krate == plan.krate);
    let uses = source.uses.iter().chain(own).cloned().collect();
    Ok((source, uses))
}

fn metadata(places: &Places) -> Result<Value> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(&places.root);
    let out = command.output().doing(|| "cannot run cargo metadata".to_string())?;
    serde_json::from_slice(&out.stdout).doing(|| "cargo metadata".to_string())
}

/// Returns the dependencies between the workspace's crates. Dependencies of tests are left out, because a test may use
/// higher layers. Optional dependencies are left out too. They belong to a test host, whose feature no kernel enables.
fn arrows(metadata: &Value) -> Result<BTreeMap<String, Vec<String>>> {
    let packages = metadata["packages"].as_array().ok_or_else(|| Failure::usage("cargo metadata names no packages"))?;
    let name = |v: &Value| v["name"].as_str().unwrap_or_default().to_owned();
    let own: Vec<String> = packages.iter().map(name).collect();
    Ok(packages
        .iter()
        .map(|p| {
            let needs = p["dependencies"].as_array().into_iter().flatten();
            let needs =
                needs.filter(|d| d["kind"] != "dev" && d["optional"] != true).map(name).filter(|d| own.contains(d));
            (name(p), needs.collect())
        })
        .collect())
}

/// Returns the dependencies that point up.
fn judge(arrows: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let layer = |name: &str| LAYERS.iter().find(|(n, _)| *n == name).map(|(_, l)| *l);
    let mut wrong = Vec::new();
    for (from, needs) in arrows {
        let Some(own) = layer(from) else {
            wrong.push(format!("{from} has no layer; give it one in xtask/src/test/layers/mod.rs"));
            continue;
        };
        for to in needs {
            match layer(to) {
                Some(other) if other < own && !APART.contains(&(from, to)) => {}
                Some(_) if APART.contains(&(from, to)) => wrong.push(format!("{from} must not know {to}")),
                _ => wrong.push(format!("{from} needs {to}, which is not below it")),
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(from: &str, to: &str) -> Vec<String> {
        judge(&BTreeMap::from([(from.to_owned(), vec![to.to_owned()])]))
    }

    #[test]
    fn an_arrow_that_points_up_or_sideways_is_found() {
        assert!(one("quire-kernel", "quire-vm").is_empty());
        assert!(one("quire-vm", "quire-sync").is_empty());
        assert!(!one("quire-vm", "quire-linux").is_empty());
        assert!(!one("quire-fs", "quire-drivers").is_empty());
        assert!(!one("quire-sync", "quire-sync").is_empty());
    }

    #[test]
    fn separate_layers_do_not_meet_and_a_new_module_needs_a_place() {
        assert!(!one("quire-task", "quire-vm").is_empty());
        assert!(!one("quire-sync", "quire-heap").is_empty());
        assert!(!one("quire-vm", "quire-lookup").is_empty());
        assert!(!one("quire-new", "quire-sync").is_empty());
    }

    #[test]
    fn tests_own_dependencies_do_not_count() {
        let metadata = serde_json::json!({"packages": [
            {"name": "quire-sync", "dependencies": [{"name": "quire-vm", "kind": "dev"},
                {"name": "loom", "kind": null}]},
            {"name": "quire-vm", "dependencies": [{"name": "quire-sync", "kind": null}]},
        ]});
        let arrows = arrows(&metadata).unwrap();
        assert_eq!(arrows["quire-sync"], Vec::<String>::new());
        assert_eq!(arrows["quire-vm"], ["quire-sync"]);
    }
}
