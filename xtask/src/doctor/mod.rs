//! `./quire doctor`: reports the machine's abilities, which accelerator runs guests and why, and how to fix
//! shortcomings. The command installs and fetches nothing.

mod look;

use std::{fmt::Write as _, path::PathBuf};

use crate::{
    failure::Result,
    machine::accel::{Accelerator, NoKvm},
    places::Places,
};

/// Prints the report. The returned exit status is 1 if guests cannot be built and run.
pub fn command(places: &Places) -> Result<u8> {
    let report = report(&look::look(places)?);
    print!("{}", report.text);
    Ok(u8::from(!report.well))
}

/// The result of the examination.
#[derive(Debug, Clone)]
struct MachineFacts {
    /// The processor's name.
    processor: String,
    /// The number of CPUs that this process may use.
    cpus: usize,
    /// The processor's name for its virtualisation extension, if it reports one.
    virtualisation: Option<&'static str>,
    /// Whether this machine is a guest itself.
    guest: bool,
    qemu: Result<Qemu, String>,
    /// Whether KVM runs a guest, or why not; `None` without a QEMU for the test.
    kvm: Option<Result<(), NoKvm>>,
    /// The accelerator that `$QUIRE_ACCEL` names.
    forced: Option<Accelerator>,
    memory: Memory,
    /// The Rust toolchain that builds the kernel, or what it lacks.
    toolchain: Result<String, String>,
    busybox: Result<PathBuf, String>,
    /// The mirror and the suite of apt.
    apt: Option<(String, String)>,
    /// The missing packages of `xtask/packages`.
    missing: Vec<String>,
    /// Interpreters on `PATH` that are shims of version managers, with the name of the manager.
    shims: Vec<(PathBuf, String)>,
    cache: PathBuf,
    /// The release of the Linux with which Quire is compared, if that Linux was fetched.
    linux: Option<String>,
}

/// The emulator that was found.
#[derive(Debug, Clone)]
struct Qemu {
    path: PathBuf,
    version: String,
    accelerators: Vec<String>,
}

/// The machine's memory, in MiB.
#[derive(Debug, Clone)]
struct Memory {
    total: u64,
    available: u64,
    /// The value of `/proc/sys/vm/overcommit_memory`.
    overcommit: u8,
    /// The selected word of `transparent_hugepage/enabled`.
    huge: Option<String>,
}

struct Report {
    text: String,
    well: bool,
}

/// The memory in MiB, beyond a guest of the usual size, for the emulator and for the build of the kernel.
const ROOM: u64 = 1024;

/// The report: one or two lines for each fact, then the accelerator, then the remedies.
fn report(found: &MachineFacts) -> Report {
    let mut text = String::new();
    let mut line = |name: &str, says: &str| {
        let _never_fails = writeln!(text, "{name:<11}{says}");
    };
    let virtualisation = match (found.virtualisation, found.guest) {
        (Some(name), false) => format!("with {name}"),
        (Some(name), true) => format!("with {name}, in a virtual machine"),
        (None, false) => "without virtualisation".to_owned(),
        (None, true) => "in a virtual machine without nested virtualisation".to_owned(),
    };
    line("Processor", &format!("{} CPU(s), {}, {virtualisation}", found.cpus, found.processor));
    line(
        "KVM",
        &match &found.kvm {
            Some(Ok(())) => "works: a trial guest ran to its end".to_owned(),
            Some(Err(why)) => format!("cannot be used: {why}"),
            None => "was not tried, because QEMU is not installed".to_owned(),
        },
    );
    line(
        "QEMU",
        &match &found.qemu {
            Ok(qemu) => format!("{} at {}, with {}", qemu.version, qemu.path.display(), qemu.accelerators.join(", ")),
            Err(why) => why.clone(),
        },
    );
    let memory = &found.memory;
    line("Memory", &format!("{} MiB, {} MiB available", memory.total, memory.available));
    line(
        "",
        match memory.overcommit {
            0 => "overcommit is 0: a guest larger than free memory starts only if QEMU does not reserve its memory",
            1 => "overcommit is 1: guests of any size start",
            _ => "overcommit is 2: a guest must fit below CommitLimit of /proc/meminfo",
        },
    );
    line(
        "",
        &match memory.huge.as_deref() {
            Some(word) => format!("transparent huge pages: {word}"),
            None => "no transparent huge pages".to_owned(),
        },
    );
    line("Rust", found.toolchain.as_deref().unwrap_or_else(|why| why));
    line(
        "Busybox",
        &match &found.busybox {
            Ok(path) => format!("static, {}", path.display()),
            Err(why) => why.clone(),
        },
    );
    line(
        "apt",
        &match &found.apt {
            Some((mirror, suite)) => format!("{suite} from {mirror}"),
            None => "none: Debian's Linux and a newer QEMU cannot be fetched on this machine".to_owned(),
        },
    );
    line(
        "Linux",
        &match &found.linux {
            Some(release) => format!("{release}, to compare with"),
            None => "not fetched yet; ./quire compare fetches it".to_owned(),
        },
    );
    line("Cache", &found.cache.display().to_string());
    if !found.missing.is_empty() {
        line("Missing", &found.missing.join(", "));
    }
    let todo = todo(found);
    let well = todo.iter().all(|t| !t.needed);
    text.push('\n');
    if well {
        let (accelerator, why) = runs(found);
        let _never_fails = writeln!(text, "Guests run with {accelerator}, because {why}.");
    } else {
        text.push_str("Guests cannot run yet.\n");
    }
    for todo in &todo {
        let _never_fails = writeln!(text, "{}: {}", if todo.needed { "Needed" } else { "Possible" }, todo.what);
    }
    if todo.is_empty() {
        text.push_str("No further step is needed.\n");
    }
    Report { text, well }
}

/// The accelerator that runs guests, and the reason for it.
fn runs(found: &MachineFacts) -> (Accelerator, String) {
    match (&found.forced, &found.kvm) {
        (Some(forced), _) => (*forced, "$QUIRE_ACCEL says so".to_owned()),
        (None, Some(Ok(()))) => (Accelerator::Kvm, "a trial guest ran".to_owned()),
        (None, Some(Err(why))) => (Accelerator::Tcg, why.to_string()),
        (None, None) => (Accelerator::Tcg, "KVM was not tried".to_owned()),
    }
}

/// A remedy that the report proposes.
struct Todo {
    /// Whether no guest can run without the remedy.
    needed: bool,
    what: String,
}

fn todo(found: &MachineFacts) -> Vec<Todo> {
    let mut todo = Vec::new();
    let mut add = |needed, what: String| todo.push(Todo { needed, what });
    let broken = found.qemu.is_err() || found.toolchain.is_err() || found.busybox.is_err();
    if !found.missing.is_empty() {
        let all = found.missing.join(" ");
        add(broken, format!("./quire setup, or: apt-get install --no-install-recommends {all}"));
    } else if broken {
        let whys = [found.qemu.as_ref().err(), found.toolchain.as_ref().err(), found.busybox.as_ref().err()];
        whys.into_iter().flatten().for_each(|why| add(true, why.clone()));
    }
    match &found.forced {
        Some(Accelerator::Kvm) if !matches!(found.kvm, Some(Ok(()))) => {
            add(true, "unset QUIRE_ACCEL: it asks for KVM, which does not work here".to_owned());
        }
        Some(Accelerator::Tcg) if matches!(found.kvm, Some(Ok(()))) => {
            add(false, "unset QUIRE_ACCEL: KVM works here and is faster".to_owned());
        }
        _ => {}
    }
    match &found.kvm {
        Some(Err(NoKvm::NoAccess(_))) => {
            add(false, "join the group kvm (usermod -aG kvm USER, then log in again): guests run faster".to_owned());
        }
        Some(Err(NoKvm::NoDevice)) if found.virtualisation.is_some() => {
            add(false, "load the module kvm_intel or kvm_amd: guests run faster".to_owned());
        }
        Some(Err(NoKvm::NoDevice)) if !found.guest => {
            add(false, "enable virtualisation in the firmware, if the processor has it".to_owned());
        }
        Some(Err(_)) if found.guest => {
            add(
                false,
                "enable nested virtualisation on the host of this virtual machine: guests run faster".to_owned(),
            );
        }
        _ => {}
    }
    if let Some((first, manager)) = found.shims.first() {
        let names = found.shims.iter().map(|(shim, _)| shim.file_name().unwrap_or_default().to_string_lossy());
        add(
            false,
            format!(
                "guests cannot run {}: shims of a version manager ({manager}: {}); give the paths of the programs \
                 themselves, or --packages",
                names.collect::<Vec<_>>().join(", "),
                first.display()
            ),
        );
    }
    if found.memory.available < ROOM {
        add(false, format!("free some memory: guests and builds need {ROOM} MiB"));
    }
    todo
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The facts of a machine that lacks nothing.
    fn good() -> MachineFacts {
        MachineFacts {
            processor: "AMD EPYC 7B13".into(),
            cpus: 2,
            virtualisation: Some("SVM"),
            guest: false,
            qemu: Ok(Qemu {
                path: "/usr/bin/qemu-system-x86_64".into(),
                version: "7.2.22".into(),
                accelerators: vec!["kvm".into(), "tcg".into()],
            }),
            kvm: Some(Ok(())),
            forced: None,
            memory: Memory { total: 16_000, available: 8_000, overcommit: 0, huge: Some("madvise".into()) },
            toolchain: Ok("Debian's rustc 1.96.0".into()),
            busybox: Ok("/usr/bin/busybox".into()),
            apt: Some(("http://deb.debian.org/debian".into(), "bookworm".into())),
            missing: vec![],
            shims: vec![],
            cache: "/home/user/quire/.cache".into(),
            linux: Some("6.12.0".into()),
        }
    }

    #[test]
    fn a_good_machine_has_nothing_to_do() {
        let report = report(&good());
        assert!(report.well);
        assert!(report.text.contains("Guests run with KVM, because a trial guest ran.\nNo further step is needed.\n"));
    }

    #[test]
    fn without_kvm_the_report_names_the_remedy() {
        let cases: [(NoKvm, Option<&'static str>, bool, &str); 6] = [
            (NoKvm::NoAccess("Permission denied".into()), Some("VT-x"), false, "group kvm"),
            (NoKvm::NoDevice, Some("VT-x"), false, "module kvm_intel or kvm_amd"),
            (NoKvm::NoDevice, None, false, "firmware"),
            (NoKvm::NoDevice, None, true, "nested"),
            (NoKvm::Hung, None, true, "nested"),
            (NoKvm::Died("signal: 6".into()), None, true, "nested"),
        ];
        for (why, virtualisation, guest, helps) in cases {
            let expected = format!("Guests run with TCG (emulation), because {why}.\nPossible: ");
            let report = report(&MachineFacts { kvm: Some(Err(why)), virtualisation, guest, ..good() });
            assert!(report.well, "emulation is enough");
            assert!(report.text.contains(&expected), "{expected:?} is not in\n{}", report.text);
            assert!(report.text.contains(helps), "{helps:?} is not in\n{}", report.text);
        }
    }

    #[test]
    fn requirements_of_every_guest_are_reported_as_needed() {
        let missing = vec!["qemu-system-x86".to_owned(), "gdb".to_owned()];
        let no_qemu = MachineFacts { qemu: Err("no QEMU".into()), kvm: None, missing: missing.clone(), ..good() };
        for (found, needed) in [
            (no_qemu, "apt-get install --no-install-recommends qemu-system-x86 gdb"),
            (MachineFacts { qemu: Err("QUIRE_QEMU=/x: no such file".into()), kvm: None, ..good() }, "QUIRE_QEMU=/x"),
            (MachineFacts { toolchain: Err("no Rust".into()), ..good() }, "no Rust"),
            (MachineFacts { busybox: Err("no static busybox".into()), ..good() }, "no static busybox"),
            (
                MachineFacts { forced: Some(Accelerator::Kvm), kvm: Some(Err(NoKvm::Hung)), ..good() },
                "unset QUIRE_ACCEL",
            ),
        ] {
            let report = report(&found);
            assert!(!report.well && report.text.contains("Guests cannot run yet.\nNeeded: "), "{}", report.text);
            assert!(report.text.contains(needed), "{needed:?} is not in\n{}", report.text);
        }
        // A missing package that only tests need does not prevent guests from running.
        let report = report(&MachineFacts { missing: vec!["valgrind".into()], ..good() });
        assert!(report.well && report.text.contains("Possible: ./quire setup"), "{}", report.text);
    }

    #[test]
    fn memory_is_judged_and_an_override_reported() {
        let little = Memory { available: ROOM - 1, overcommit: 2, huge: None, ..good().memory };
        let text = report(&MachineFacts { memory: little, ..good() }).text;
        assert!(text.contains("free some memory") && text.contains("CommitLimit") && text.contains("no transparent"));
        let text = report(&MachineFacts { memory: Memory { available: ROOM, ..good().memory }, ..good() }).text;
        assert!(!text.contains("free some memory"));
        let text = report(&MachineFacts { forced: Some(Accelerator::Tcg), ..good() }).text;
        assert!(text.contains("$QUIRE_ACCEL says so") && text.contains("KVM works here and is faster"));
    }

    fn shim((folder, name): (PathBuf, &str)) -> (PathBuf, String) {
        (folder.join(name), "asdf".to_owned())
    }

    #[test]
    fn shims_of_version_managers_are_named() {
        let shims = ["python3", "node"].map(|name| ("/home/u/.asdf/shims".into(), name)).map(shim).into();
        let report = report(&MachineFacts { shims, ..good() });
        let said =
            "Possible: guests cannot run python3, node: shims of a version manager (asdf: /home/u/.asdf/shims/python3)";
        assert!(report.well && report.text.contains(said), "{}", report.text);
    }

    #[test]
    fn the_longest_report_is_one_screen() {
        let worst = MachineFacts {
            qemu: Err("qemu-system-x86_64 is not installed: run ./quire setup, or name one in $QUIRE_QEMU".into()),
            kvm: Some(Err(NoKvm::NoAccess("Permission denied (os error 13)".into()))),
            toolchain: Err("no Rust toolchain for kernels".into()),
            busybox: Err("no static busybox".into()),
            memory: Memory { total: 900, available: 100, overcommit: 2, huge: None },
            forced: Some(Accelerator::Kvm),
            apt: None,
            linux: None,
            shims: ["python3", "node", "ruby"].map(|name| ("/root/.asdf/shims".into(), name)).map(shim).into(),
            missing: ["gcc", "make", "rustc-web", "lld-22", "qemu-system-x86", "busybox-static"].map(Into::into).into(),
            ..good()
        };
        let text = report(&worst).text;
        // The longest report must fit into 24 lines of a terminal with 100 columns.
        let lines: usize = text.lines().map(|l| l.len().div_ceil(100).max(1)).sum();
        assert!(lines <= 24, "{lines} lines:\n{text}");
    }
}
