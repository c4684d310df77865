//! `./quire debug`: runs gdb at a program's first instruction, with the symbols of the kernel and of the program.
//!
//! QEMU starts in a stopped state and listens on a socket that it inherits. The kernel runs until its first return to
//! user mode (`trap_first_return`). Gdb stops the machine at that function, and reads the program's entry from the
//! auxiliary vector on the program's stack, which is right for any load address. So this works for static,
//! position-independent and dynamic programs.

use std::{
    fs::File,
    io::{self, Seek, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use signal_hook::consts::SIGINT;

use crate::{
    boot::{Kernel, On, Shape},
    cli,
    failure::{Doing, Failure, Result},
    image::{libraries, tree::Tree},
    machine::{
        outcome::Outcome,
        qemu,
        relay::{self, Asked, Ends},
    },
    places::Places,
    run,
};

/// Starts the machine and gdb. Returns gdb's exit status.
pub fn command(places: &Places, options: &cli::Debug) -> Result<u8> {
    let (tree, order) = run::prepare(places, &options.guest, &options.program, false)?;
    let program = symbols_of(&tree, &order.args[0])?;
    let kernel = Kernel::ready(places, On::Quire)?;
    let image = kernel.image(tree, &order)?;
    let (listener, port) = qemu::local_listener()?;
    let script = script(kernel.file(), program.as_deref(), port)?;
    let (mut stop, wake) = UnixStream::pair().doing(|| "cannot connect to the guest".to_string())?;
    // Ctrl-C is ignored in this process, because gdb handles it.
    let ignored = Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, ignored).doing(|| "cannot catch signals".to_string())?;
    let shape = shape(&options.guest, &listener);
    std::thread::scope(|scope| {
        let machine = scope.spawn(move || {
            let guest = kernel.start(&image, &shape);
            drop(listener);
            let nothing = File::open("/dev/null").doing(|| "cannot open /dev/null".to_string())?;
            Ok::<_, Failure>(relay::run(
                guest?,
                Ends {
                    input: nothing.as_fd(),
                    output: rustix::stdio::stdout(),
                    errors: rustix::stdio::stderr(),
                    wake: Some(wake.as_fd()),
                    asked: Box::new(|| vec![Asked::Stop(15)]),
                    tty: false,
                    verbose: false,
                    results: false,
                    log: None,
                    deadline: None,
                },
            ))
        });
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-nx", "-x"]).arg(format!("/proc/self/fd/{}", script.as_raw_fd()));
        if !options.commands.is_empty() {
            gdb.arg("-batch").stdin(Stdio::null());
            options.commands.iter().for_each(|c| {
                gdb.arg("-ex").arg(c);
            });
        }
        qemu::inherit(&mut gdb, vec![script.as_raw_fd()]);
        let status = gdb.spawn().and_then(|gdb| ended(gdb, options.guest.timeout));
        let _ = stop.write_all(b"x");
        let report = machine.join().unwrap_or_else(|_| Err(Failure::machine("the relay panicked")))?;
        let status = status.map_err(|e| Failure::usage(format_args!("gdb: {e}; run ./quire setup")))?;
        drop(report);
        let Some(status) = status else { return Err(Outcome::TimedOut.to_failure()) };
        Ok(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
    })
}

/// Waits for the end of gdb. If gdb runs longer than `limit`, this function ends gdb and returns `None`. Gdb ends
/// before its machine, so that it does not report a lost connection.
fn ended(mut gdb: Child, limit: Option<Duration>) -> io::Result<Option<ExitStatus>> {
    /// The time that gdb gets to end, because it first tries to stop the program.
    const GRACE: Duration = Duration::from_secs(3);
    let Some(limit) = limit else { return gdb.wait().map(Some) };
    let pid = Pid::from_child(&gdb);
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    if ends_within(&end, limit)? {
        return gdb.wait().map(Some);
    }
    let _ = kill_process(pid, Signal::TERM);
    if !ends_within(&end, GRACE)? {
        gdb.kill()?;
    }
    gdb.wait().map(|_| None)
}

/// Whether the process of `pidfd` ends within `limit`.
fn ends_within(pidfd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
    Ok(retry_on_intr(|| poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)))? > 0)
}

fn shape(guest: &cli::Guest, listener: &OwnedFd) -> Shape {
    let fd = listener.as_raw_fd();
    let words = ["-S", "-gdb", "chardev:gdb", "-chardev", &format!("socket,id=gdb,fd={fd},server=on,wait=off")];
    Shape {
        cpus: guest.cpus,
        memory: guest.memory,
        extra: words.iter().map(Into::into).collect(),
        inherit: vec![fd],
        ..Shape::default()
    }
}

/// The host's file of the guest's program, if it is an ELF file. Links are followed within the tree.
fn symbols_of(tree: &Tree, program: &std::ffi::OsStr) -> Result<Option<PathBuf>> {
    Ok(tree.host_path(program).filter(|p| std::fs::read(p).is_ok_and(|bytes| libraries::needs(&bytes).is_ok())))
}

/// The commands that gdb runs before its first prompt. The user sees only where gdb stopped.
fn script(kernel: &Path, program: Option<&Path>, port: u16) -> Result<File> {
    let symbols = match program {
        None => String::new(),
        Some(program) => {
            let bytes = std::fs::read(program).doing(|| format!("cannot read {}", program.display()))?;
            let linked = libraries::needs(&bytes).map_or(0, |n| n.entry);
            format!("quiet('add-symbol-file {} -o $entry-{linked:#x}')\n", program.display())
        }
    };
    let text = format!(
        "set pagination off\nset confirm off\nset sysroot /\nfile {}\npython\n\
         def quiet(line):\n    gdb.execute(line, False, True)\n\
         def number(name):\n    return int(gdb.parse_and_eval(name)) & 0xffffffffffffffff\n\
         def word(at):\n    return int.from_bytes(bytes(gdb.selected_inferior().read_memory(at, 8)), 'little')\n\
         def reach(place):\n    quiet('hbreak ' + place)\n    quiet('continue')\n    quiet('delete')\n\
         def notify(word):\n    try:\n        quiet('set suppress-cli-notifications ' + word)\n    except \
         gdb.error:\n        pass # an older gdb reports every step\n\
         notify('on')\n\
         quiet('set architecture i386:x86-64')\n\
         quiet('target remote 127.0.0.1:{port}')\n\
         # The kernel's first way to user mode, and one step beyond it.\n\
         reach('*trap_first_return')\n\
         while number('$cs') & 3 == 0:\n    quiet('stepi')\n\
         # argc, the arguments, the environment, then the auxiliary vector, where 9 is AT_ENTRY.\n\
         at = number('$rsp')\n\
         at += 8 * (word(at) + 2)\n\
         while word(at) != 0:\n    at += 8\n\
         at += 8\n\
         while word(at) not in (0, 9):\n    at += 16\n\
         quiet('set $entry = %d' % word(at + 8))\n\
         {symbols}\
         if number('$pc') != number('$entry'):\n    reach('*$entry')\n\
         # The page of the entry comes by a fault. Without it gdb could neither show an instruction nor place a \
         breakpoint.\n\
         try:\n    gdb.selected_inferior().read_memory(number('$entry'), 1)\n\
         except gdb.MemoryError:\n    quiet('stepi')\n    reach('*$entry')\n\
         notify('off')\n\
         print('The program is at its entry, %#x. The kernel\\'s symbols are loaded too.' % number('$entry'))\n\
         gdb.execute('x/i $pc')\nend\nset confirm on\n",
        kernel.display()
    );
    let about = || "cannot keep gdb's commands".to_string();
    let mut file = qemu::memory_file("quire-gdb").doing(about)?;
    file.write_all(text.as_bytes()).and_then(|()| file.rewind()).doing(about)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_script_loads_both_sides_symbols() {
        let own = std::env::current_exe().unwrap();
        let mut text = String::new();
        script(Path::new("/k"), Some(&own), 4321).unwrap().read_to_string(&mut text).unwrap();
        for part in ["\nfile /k\n", "127.0.0.1:4321", &format!("add-symbol-file {} -o $entry-0x", own.display())] {
            assert!(text.contains(part), "{part}");
        }
    }
}
