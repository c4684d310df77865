//! Tests of the kernel's watchdog. Each test makes one thing hang on purpose. The log must name that thing correctly,
//! and must report nothing else.
//!
//! Guest time counts instructions (`-icount`), so it does not depend on other work of this host.

use std::time::Duration;

use super::{Context, verdict::Check};
use crate::boot::{Kernel, On, Shape};
use crate::build;
use crate::failure::Result;
use crate::image::{order::Order, root};
use crate::machine::{outcome::Outcome, relay};

/// The time after which a machine counts as hanging.
const LIMIT: Duration = Duration::from_secs(300);

/// One machine, the failure that it provokes, and the text that its log must contain.
struct Case {
    name: &'static str,
    /// Whether the kernel is the self-checking one, which knows the holder of a lock.
    checked: bool,
    cpus: u32,
    /// Boot words for the kernel, in addition to the threshold of one second and the sleepers' timeout of two seconds.
    append: &'static str,
    script: &'static str,
    outcome: Outcome,
    /// Texts that the log must contain, in this order.
    logged: &'static [&'static str],
    /// The number of reported incidents.
    incidents: usize,
    /// The expected output of the program.
    printed: &'static str,
}

/// A script that acquires most of the kernel's locks, and then computes for long without a system call.
const BUSY: &str = "for i in 1 2 3 4; do (dd if=/dev/zero of=/tmp/f$i bs=64k count=16 2>/dev/null; sort /etc/passwd | \
    wc -l >/dev/null; \
                    cat /tmp/f$i /proc/self/maps | md5sum >/dev/null; rm /tmp/f$i) & done; \
                    n=0; while [ $n -lt 150000 ]; do n=$((n + 1)); done; sleep 30; wait; echo done";
const SETTINGS: &str = "cd /proc/sys/kernel; cat watchdog watchdog_thresh softlockup_panic hung_task_timeout_secs \
    hung_task_panic; \
                        for n in 61 x -1; do echo $n >watchdog_thresh || echo no; done 2>/dev/null; echo 60 \
                        >watchdog_thresh && \
                        echo 0 >watchdog && cat watchdog watchdog_thresh";

const CASES: &[Case] = &[
    Case {
        name: "a CPU that does not schedule is reported with all stacks",
        checked: false,
        cpus: 2,
        append: "watchdog=panic lockup=soft",
        script: "sleep 100",
        outcome: Outcome::Panicked,
        logged: &["watchdog: soft lockup: CPU ", "provoke::turn", "provoke::never_schedules", "panic on CPU"],
        incidents: 1,
        printed: "",
    },
    Case {
        name: "a CPU that schedules late is reported once and continues",
        checked: false,
        cpus: 1,
        append: "lockup=pass",
        script: "sleep 5; echo there",
        outcome: Outcome::Exit(0),
        logged: &["watchdog: soft lockup: CPU 0 did not schedule in 2 s", "provoke::schedules_late", "is over"],
        incidents: 1,
        printed: "there\n",
    },
    Case {
        name: "a disabled watchdog reports nothing",
        checked: false,
        cpus: 1,
        append: "watchdog=off lockup=pass",
        script: "sleep 5; echo there",
        outcome: Outcome::Exit(0),
        logged: &["is over"],
        incidents: 0,
        printed: "there\n",
    },
    Case {
        name: "a neighbour reports a CPU that takes no interrupts",
        checked: false,
        cpus: 2,
        append: "watchdog=panic lockup=hard",
        script: "sleep 100",
        outcome: Outcome::Panicked,
        logged: &["watchdog: hard lockup: CPU ", "interrupts masked", "provoke::takes_no_interrupts", "panic on CPU"],
        incidents: 1,
        printed: "",
    },
    Case {
        name: "a spin lock held too long is reported with its holder",
        checked: true,
        cpus: 2,
        append: "watchdog=panic lockup=spin",
        script: "sleep 100",
        outcome: Outcome::Panicked,
        logged: &[
            "watchdog: spin lock: CPU ",
            "rank 32, which CPU ",
            "provoke::wants_the_lock",
            "provoke::holds_a_lock",
        ],
        incidents: 1,
        printed: "",
    },
    Case {
        name: "a thread in uninterruptible sleep is reported with its stack",
        checked: false,
        cpus: 1,
        append: "watchdog=panic lockup=hung",
        script: "sleep 100",
        outcome: Outcome::Panicked,
        logged: &[
            "watchdog: hung task: thread 1 (busybox) has slept for 2 s",
            "provoke::sleep_where_asked",
            "panic on CPU",
        ],
        incidents: 1,
        printed: "",
    },
    Case {
        name: "a machine that works, computes and idles is not reported",
        checked: false,
        cpus: 2,
        append: "",
        script: BUSY,
        outcome: Outcome::Exit(0),
        logged: &[],
        incidents: 0,
        printed: "done\n",
    },
    Case {
        name: "its settings are in the same files as on Linux",
        checked: false,
        cpus: 1,
        append: "watchdog=panic",
        script: SETTINGS,
        outcome: Outcome::Exit(0),
        logged: &[],
        incidents: 0,
        printed: "1\n1\n1\n2\n1\nno\nno\nno\n0\n60\n",
    },
];

/// The checks' names: one for each case.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(CASES.iter().map(|case| format!("watchdog/{}", case.name)).collect())
}

/// Boots a machine for each case that is selected.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for case in CASES {
        let name = format!("watchdog/{}", case.name);
        if context.selects(&name) {
            let result =
                boot(context, case).map_err(|failure| failure.to_string()).and_then(|ended| judge(case, &ended));
            done(Check::of(name, result));
        }
    }
    Ok(())
}

fn boot(context: &Context<'_>, case: &Case) -> Result<relay::GuestOutput> {
    let kernel = Kernel::with(context.places, On::Quire, || {
        if case.checked { build::checked_kernel(context.places) } else { context.kernel() }
    })?;
    let args = ["/bin/busybox", "sh", "-c", case.script].map(Into::into).to_vec();
    let order = Order { args, env: vec![], cwd: "/".into(), ..Order::default() };
    let image = kernel.image(root::tree()?, &order)?;
    let append = format!("watchdog_thresh=1 hung_task_timeout_secs=2 {}", case.append);
    let shape = Shape { cpus: case.cpus, memory: 256, count: true, append, ..Shape::default() };
    kernel.kept(&image, &shape, LIMIT)
}

fn judge(case: &Case, ended: &relay::GuestOutput) -> Result<(), String> {
    let log = &ended.report.log_tail;
    let wrong = |what: &str| Err(format!("{what}; the log ends:\n{}", crate::run::last_lines(log, 40)));
    if ended.report.outcome != case.outcome {
        return wrong(&format!("{:?} instead of {:?}", ended.report.outcome, case.outcome));
    }
    let mut rest = log.as_str();
    for word in case.logged {
        match rest.split_once(word) {
            Some((_, after)) => rest = after,
            None => return wrong(&format!("{word:?} is missing or in the wrong order")),
        }
    }
    let incidents = log.lines().filter(|l| l.contains("] watchdog: ")).count();
    if incidents != case.incidents {
        return wrong(&format!("{incidents} incidents instead of {}", case.incidents));
    }
    match String::from_utf8_lossy(&ended.output) {
        said if said == case.printed => Ok(()),
        said => wrong(&format!("it printed {said:?} instead of {:?}", case.printed)),
    }
}
