//! `./quire run`: runs one program in a fresh machine. Its streams and its exit status are as if it ran on the host.

use std::{
    ffi::OsString,
    io::Write as _,
    os::{fd::AsFd, unix::ffi::OsStrExt as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use crate::{
    boot::{Kernel, On, Shape},
    cli,
    failure::{Doing, Failure, Result},
    image::{
        archive::Archive,
        compiler, debian,
        order::Order,
        program::{self, Copy, First},
        results::{self, CopyOut},
        root,
        tree::Tree,
    },
    machine::{
        boot_words,
        killed::Killed,
        outcome::Outcome,
        qemu::Guest,
        relay::{self, Asked, Ends, Report},
        terminal::{self, Raw},
    },
    places::Places,
    programs,
    setup::lua,
};

/// Runs the program and returns its exit status.
pub fn command(places: &Places, options: &cli::Run) -> Result<u8> {
    if !options.linux {
        boot_words::check(&options.append)?;
    }
    let tty = terminal::interactive();
    let (tree, mut order) = prepare(places, &options.guest, &options.program, tty)?;
    let wanted = options.copy_out.iter().map(|text| CopyOut::parse(text, &options.guest.cwd));
    let wanted = wanted.collect::<Result<Vec<_>>>()?;
    order.results = wanted.iter().map(|w| w.guest.clone().into()).collect();
    let kernel = Kernel::ready(places, if options.linux { On::Linux } else { On::Quire })?;
    let image = kernel.image(tree, &order)?;
    if options.verbose {
        eprintln!("quire: accelerator {}: {}", kernel.accelerator(), kernel.why);
    }
    let shape = Shape {
        cpus: options.guest.cpus,
        memory: options.guest.memory,
        verbose: options.verbose,
        append: options.append.clone(),
        count: options.count,
        ..Shape::default()
    };
    let start = || kernel.start(&image, &shape);
    let mut report =
        with_user(start, tty && !options.linux, options.verbose, options.guest.timeout, !wanted.is_empty())?;
    if options.verbose
        && let (Some(ns), Some(after)) = (report.ready, report.ready_after)
    {
        eprintln!(
            "quire: first user instruction {:.3} s after the kernel's start, {:.3} s after QEMU's",
            ns as f64 / 1e9,
            after.as_secs_f64()
        );
    }
    if let Some(file) = &options.json {
        let json = Json::of(options, &kernel, &report);
        let about = || format!("cannot write {}", file.display());
        std::fs::write(file, serde_json::to_string_pretty(&json).doing(about)? + "\n").doing(about)?;
    }
    let results = report.results.take();
    let status = conclude(&report, options.verbose)?;
    if status != 0
        && let Some(killed) = Killed::find(&report.log_tail)
    {
        eprintln!("quire: {}", killed.advice(options.guest.memory, !options.linux));
    }
    if !wanted.is_empty()
        && let Err(e) = results::unpack(results, &wanted)
    {
        eprintln!("quire: {e}");
        return Ok(if status == 0 { e.status } else { status });
    }
    Ok(status)
}

/// The result of a run, in the format for other tools (docs/commands.md, "Results as JSON").
#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    command: Vec<String>,
    kernel: &'a str,
    accelerator: String,
    cpus: u32,
    memory_mib: u64,
    end: &'static str,
    status: u8,
    signal: Option<u8>,
    first_instruction_s: Option<f64>,
    killed: Option<Killed<'a>>,
}

impl<'a> Json<'a> {
    fn of(options: &cli::Run, kernel: &'a Kernel, report: &'a Report) -> Self {
        Self {
            version: 1,
            command: options.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            kernel: &kernel.name,
            accelerator: kernel.accelerator().to_string(),
            cpus: options.guest.cpus,
            memory_mib: options.guest.memory,
            end: report.outcome.name(),
            status: report.outcome.status(),
            signal: match report.outcome {
                Outcome::Signal(n) | Outcome::Stopped(n) => Some(n),
                _ => None,
            },
            first_instruction_s: report.ready.map(|ns| ns as f64 / 1e9),
            killed: Killed::find(&report.log_tail),
        }
    }
}

/// The exit status of a run, or the failure of the machine.
fn conclude(report: &Report, log_shown: bool) -> Result<u8> {
    match &report.outcome {
        Outcome::Exit(_) | Outcome::Signal(_) => Ok(report.outcome.status()),
        other => {
            if matches!(other, Outcome::Panicked | Outcome::Died(_)) && !log_shown {
                eprint!("{}", last_lines(&report.log_tail, 40));
            }
            Err(other.to_failure())
        }
    }
}

/// The last `count` lines of a log, without carriage returns.
pub fn last_lines(text: &str, count: usize) -> String {
    let text = text.replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].iter().map(|l| format!("{l}\n")).collect()
}

/// Returns the tree with the program and the copies in it, and the order to run the program. A wrong request fails in
/// this function, before anything is built or started.
pub fn prepare(places: &Places, guest: &cli::Guest, words: &[OsString], tty: bool) -> Result<(Tree, Order)> {
    let mut tree = root_of(places, guest)?;
    if let Some(names) = &guest.sources {
        debian::sources(&mut tree, places, names)?;
    }
    for copy in &guest.copy {
        Copy::parse(copy, &guest.cwd)?.install(&mut tree)?;
    }
    let mut args = words.to_vec();
    if args.is_empty() {
        // The program is the guest's own shell, which can edit lines. A path would name a file of the host.
        args = vec![root::SHELL.into(), "-l".into()];
    } else if programs::is_named(places, &args[0]) {
        programs::install(&mut tree, &programs::with_companions(places, &args[0])?)?;
        if programs::builds(&args[0]) {
            compiler::install(&mut tree, &lua::ensure(places)?)?;
        }
        args[0] = programs::in_guest(&args[0].to_string_lossy()).into();
    } else {
        let whole = guest.packages.is_some() || guest.root.is_some();
        args[0] = program::install(&mut tree, &args[0], if whole { First::Guest } else { First::Host })?;
    }
    if !starts_in(&tree, &guest.cwd) {
        return Err(Failure::usage(format_args!(
            "--cwd {}: the guest has no such directory; --copy DIR:{} puts one there",
            guest.cwd.display(),
            guest.cwd.display()
        )));
    }
    let mut env: Vec<OsString> = vec![format!("PATH={}", root::PATH).into(), "HOME=/root".into(), "USER=root".into()];
    if tty {
        let mut term = OsString::from("TERM=");
        term.push(std::env::var_os("TERM").unwrap_or_else(|| "linux".into()));
        env.push(term);
    }
    for given in &guest.env {
        let name = given.as_bytes().split_inclusive(|b| *b == b'=').next().unwrap_or_default();
        env.retain(|e| !e.as_bytes().starts_with(name));
        env.push(given.clone());
    }
    // Beyond the files, a 16th of their size is for page descriptors and page tables.
    let unpacked = tree.unpacked();
    let needed = 24 + (unpacked + unpacked / 16).div_ceil(1 << 20);
    if guest.memory < needed {
        return Err(Failure::usage(format_args!(
            "--memory {}M is too little for these files; give at least {needed}M",
            guest.memory
        )));
    }
    let size = if tty { terminal::size(rustix::stdio::stdout()) } else { None };
    Ok((tree, Order { args, env, cwd: guest.cwd.clone().into(), results: Vec::new(), tty, size }))
}

/// Whether the guest has the directory `cwd`. Directories below file systems that the kernel mounts are not in the
/// tree.
fn starts_in(tree: &Tree, cwd: &Path) -> bool {
    let root = cwd.components().eq([std::path::Component::RootDir]);
    root || tree.has_directory(cwd) || ["/dev", "/proc", "/sys"].iter().any(|mounted| cwd.starts_with(mounted))
}

/// The guest's root file system: Quire's own, a given directory, or one made of packages.
fn root_of(places: &Places, guest: &cli::Guest) -> Result<Tree> {
    if let Some(names) = &guest.packages {
        return debian::tree(places, names);
    }
    let Some(given) = &guest.root else { return root::tree() };
    let mut tree = Tree::default();
    if given.is_dir() {
        tree.host_tree("/", given)?;
    } else {
        tree.members(Path::new("/"), &Archive::open(given)?, true)?;
    }
    root::mounted(&mut tree)?;
    Ok(tree)
}

/// Starts the machine and connects it with the user's streams, terminal and signals.
pub fn with_user(
    start: impl FnOnce() -> Result<Guest>,
    tty: bool,
    verbose: bool,
    timeout: Option<Duration>,
    results: bool,
) -> Result<Report> {
    let about = || "cannot catch signals".to_string();
    let (wake, bell) = std::os::unix::net::UnixStream::pair().doing(about)?;
    wake.set_nonblocking(true).doing(about)?;
    let mut flags = Vec::new();
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH] {
        let flag = Arc::new(AtomicBool::new(false));
        // The flag is registered before the pipe, because it must be set when the pipe wakes the loop.
        signal_hook::flag::register(signal, Arc::clone(&flag)).doing(about)?;
        signal_hook::low_level::pipe::register(signal, bell.try_clone().doing(about)?).doing(about)?;
        flags.push((signal, flag));
    }
    let asked = || {
        let mut sink = [0; 64];
        while matches!(rustix::io::read(&wake, &mut sink), Ok(1..)) {}
        let mut wishes = Vec::new();
        for (signal, flag) in &flags {
            if flag.swap(false, Ordering::SeqCst) {
                wishes.push(match *signal {
                    SIGINT => Asked::Interrupt,
                    SIGWINCH => Asked::Resized,
                    other => Asked::Stop(u8::try_from(other).unwrap_or(15)),
                });
            }
        }
        wishes
    };
    let deadline = timeout.map(|t| Instant::now() + t);
    let guest = start()?;
    let (input, output, errors) = (rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr());
    let raw = if tty { Raw::enter(input) } else { None };
    if raw.is_some() && verbose {
        let _ = std::io::stderr().write_all(b"quire: Ctrl-] ends the machine\r\n");
    }
    let ends = Ends {
        input,
        output,
        errors,
        wake: Some(wake.as_fd()),
        asked: Box::new(asked),
        tty: raw.is_some(),
        verbose,
        results,
        log: None,
        deadline,
    };
    let report = relay::run(guest, ends);
    drop(raw);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        assert_eq!(last_lines("a\r\nb\nc", 2), "b\nc\n");
        assert_eq!(last_lines("", 3), "");
    }

    fn guest() -> cli::Guest {
        cli::Guest { env: vec!["HOME=/x".into(), "A=b=c".into()], cwd: "/tmp".into(), ..cli::Guest::of(1, 512) }
    }

    #[test]
    fn a_directory_that_the_guest_lacks_is_refused_unless_a_copy_makes_it() {
        let start = |cwd: &str, copy: Vec<OsString>| {
            let guest = cli::Guest { cwd: cwd.into(), copy, ..cli::Guest::of(1, 512) };
            prepare(&Places::find(), &guest, &["sort".into()], false).map(|(_, order)| order.cwd)
        };
        for cwd in ["/nope", "/etc/passwd", "/tmp/nope"] {
            let refused = start(cwd, vec![]).unwrap_err();
            assert!(refused.status == 2 && refused.message.contains(cwd), "{refused}");
        }
        for cwd in ["/", "/tmp", "/bin", "/proc/sys"] {
            assert_eq!(start(cwd, vec![]).unwrap(), cwd);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(start("/work", vec![file.path().into()]).unwrap(), "/work");
    }

    #[test]
    fn a_variable_given_replaces_the_usual_one() {
        let (tree, order) = prepare(&Places::find(), &guest(), &["sort".into(), "-n".into()], false).unwrap();
        assert!(tree.has("/usr/bin/sort"));
        assert_eq!(order.args, ["/usr/bin/sort", "-n"]);
        let env: Vec<_> = order.env.iter().map(|e| e.to_string_lossy()).collect();
        assert_eq!(env.iter().filter(|e| e.starts_with("HOME=")).collect::<Vec<_>>(), ["HOME=/x"]);
        assert!(env.iter().any(|e| e == "A=b=c"));
        assert!(!env.iter().any(|e| e.starts_with("TERM=")));
    }

    #[test]
    fn without_a_program_the_guests_own_shell_runs() {
        let (tree, order) = prepare(&Places::find(), &guest(), &[], true).unwrap();
        assert_eq!(order.args, ["/bin/sh", "-l"]);
        let busybox = std::fs::canonicalize(crate::image::root::busybox().unwrap()).unwrap();
        assert_eq!(tree.host_path("/bin/sh").map(|p| std::fs::canonicalize(p).unwrap()), Some(busybox));
    }

    #[test]
    fn files_that_do_not_fit_into_the_memory_are_refused() {
        let big = tempfile::tempdir().unwrap();
        let file = big.path().join("big");
        std::fs::File::create(&file).unwrap().set_len(100 << 20).unwrap();
        let small = cli::Guest { memory: 128, copy: vec![file.into()], ..guest() };
        assert_eq!(prepare(&Places::find(), &small, &["sort".into()], false).unwrap_err().status, 2);
    }
}
