//! Runs programs in a guest whose first program is `guest/testd.c`; this module is the host's side of its protocol. A
//! [`Session`] is one boot that runs many programs. [`alone`] is a boot whose image has the order for one program.

use std::{
    fs::File,
    io::{PipeReader, PipeWriter, Read, Write, pipe},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
};

use crate::{
    boot::{Kernel, Shape},
    failure::{Doing, Failure, Result},
    machine::{
        outcome::Outcome,
        qemu::Guest,
        relay::{self, Asked, Ends, Report},
    },
};

/// How a test's program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The program exited with this status.
    Exit(u8),
    /// This signal ended the program.
    Signal(u8),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "status {status}"),
            Self::Signal(n) => write!(f, "signal {n}"),
        }
    }
}

/// The result of a test's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// How the program ended.
    pub end: End,
    /// The program's standard output.
    pub stdout: Vec<u8>,
    /// The program's standard error.
    pub stderr: Vec<u8>,
}

/// Why there is no answer. After this error the session cannot be used.
#[derive(Debug)]
pub enum Trouble {
    /// The time limit has passed.
    Hung,
    /// The machine ended.
    Ended,
    /// The answer breaks the protocol.
    Garbled(String),
}

/// A booted machine that waits for tests.
pub struct Session {
    input: PipeWriter,
    output: PipeReader,
    stop: UnixStream,
    relay: JoinHandle<Result<Report>>,
}

impl Session {
    /// Boots the machine. Writes the kernel's log to `log`.
    pub fn boot(kernel: &Arc<Kernel>, image: &Arc<File>, shape: Shape, log: File) -> Result<Self> {
        let about = || "cannot connect to the guest".to_string();
        let (theirs_in, input) = pipe().doing(about)?;
        let (output, theirs_out) = pipe().doing(about)?;
        fcntl_setfl(&input, OFlags::NONBLOCK).doing(about)?;
        fcntl_setfl(&output, OFlags::NONBLOCK).doing(about)?;
        let (stop, wake) = UnixStream::pair().doing(about)?;
        let (kernel, image) = (Arc::clone(kernel), Arc::clone(image));
        let relay = std::thread::spawn(move || {
            let guest = kernel.start(&image, &shape)?;
            let errors = log.try_clone().doing(about)?;
            let ends = Ends {
                input: theirs_in.as_fd(),
                output: theirs_out.as_fd(),
                errors: errors.as_fd(),
                wake: Some(wake.as_fd()),
                asked: Box::new(|| vec![Asked::Stop(15)]),
                tty: false,
                verbose: false,
                results: false,
                log: Some(log),
                deadline: None,
            };
            Ok(relay::run(guest, ends))
        });
        Ok(Self { input, output, stop, relay })
    }

    /// Runs one program and waits for its end.
    pub fn ask(&mut self, args: &[String], stdin: &[u8], limit: Duration) -> Result<Answer, Trouble> {
        let deadline = Instant::now() + limit;
        self.send(&order(args, stdin), deadline)?;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if line.len() > 200 {
                break;
            }
            line.extend(self.receive(1, deadline)?);
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        let (end, out, err) = parse(&line).ok_or_else(|| Trouble::Garbled(line.clone()))?;
        Ok(Answer { end, stdout: self.receive(out, deadline)?, stderr: self.receive(err, deadline)? })
    }

    /// Ends the input, so that the machine's first program and then the machine end. Returns the report of the end.
    pub fn finish(self) -> Result<Report> {
        drop(self.input);
        let start = Instant::now();
        while !self.relay.is_finished() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self::end(self.stop, self.relay)
    }

    /// Ends the machine at once.
    pub fn abandon(self) -> Result<Report> {
        Self::end(self.stop, self.relay)
    }

    fn end(mut stop: UnixStream, relay: JoinHandle<Result<Report>>) -> Result<Report> {
        let _ = stop.write_all(b"x");
        relay.join().unwrap_or_else(|_| Err(Failure::machine("the relay panicked")))
    }

    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), Trouble> {
        while !bytes.is_empty() {
            wait(&self.input, PollFlags::OUT, deadline)?;
            match self.input.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Trouble::Ended),
            }
        }
        Ok(())
    }

    fn receive(&mut self, count: usize, deadline: Instant) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        let mut piece = [0; 1 << 16];
        while bytes.len() < count {
            wait(&self.output, PollFlags::IN, deadline)?;
            let most = piece.len().min(count - bytes.len());
            match self.output.read(&mut piece[..most]) {
                Ok(0) => return Err(Trouble::Ended),
                Ok(n) => bytes.extend(&piece[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Trouble::Ended),
            }
        }
        Ok(bytes)
    }
}

/// Returns the order to run a program, in the protocol's format.
pub fn order(args: &[String], stdin: &[u8]) -> Vec<u8> {
    let mut order = format!("test {} {}\n", args.len(), stdin.len()).into_bytes();
    for arg in args {
        order.extend(format!("{}\n", arg.len()).bytes());
        order.extend(arg.bytes());
    }
    order.extend(stdin);
    order
}

/// Runs a machine whose image has one [`order`], and that does nothing else. The host sends the guest nothing. So with
/// a counted clock the run depends only on the image. Returns the answer or the error, and the kernel's log.
pub fn alone(guest: Guest, limit: Duration) -> Result<(Result<Answer, String>, String)> {
    let ended = relay::silent(guest, limit)?;
    let log = crate::run::last_lines(&ended.report.log_tail, 12);
    let answer = match (complaint(&ended.report), whole(&ended.output)) {
        (None, Some(answer)) => Ok(answer),
        (None, None) => {
            let (said, errors) = (String::from_utf8_lossy(&ended.output), String::from_utf8_lossy(&ended.errors));
            Err(format!("the guest answered {said:?}, and on standard error {errors:?}"))
        }
        (Some(_), _) if ended.report.outcome == Outcome::TimedOut => {
            Err(format!("the guest did not answer within {} s; the log ends:\n{log}", limit.as_secs()))
        }
        (Some(why), None) => Err(why),
        (Some(why), Some(_)) => Err(format!("the program ended, but not the machine: {why}")),
    };
    Ok((answer, ended.report.log_tail))
}

/// Parses an answer that must be all of `bytes`.
fn whole(bytes: &[u8]) -> Option<Answer> {
    let at = bytes.iter().position(|b| *b == b'\n')?;
    let (end, out, err) = parse(str::from_utf8(&bytes[..at]).ok()?)?;
    let rest = &bytes[at + 1..];
    if rest.len() != out.checked_add(err)? {
        return None;
    }
    Some(Answer { end, stdout: rest[..out].to_vec(), stderr: rest[out..].to_vec() })
}

/// Returns why the end of the machine is wrong; `None` if it is orderly.
pub fn complaint(report: &Report) -> Option<String> {
    match &report.outcome {
        Outcome::Exit(0) => None,
        Outcome::Exit(status) => Some(format!("the guest's first program ended with {status}")),
        Outcome::Signal(n) => Some(format!("the guest's first program died of signal {n}")),
        Outcome::Panicked => Some(format!("the kernel panicked:\n{}", crate::run::last_lines(&report.log_tail, 30))),
        Outcome::Died(how) => Some(how.clone()),
        other => Some(format!("{other:?}")),
    }
}

fn wait(fd: impl AsFd, flags: PollFlags, deadline: Instant) -> Result<(), Trouble> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Trouble::Hung);
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)) {
            Ok(1..) => return Ok(()),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Trouble::Ended),
        }
    }
}

/// Parses a line like `done exit 3 12 0`: the end, and the lengths of both outputs.
fn parse(line: &str) -> Option<(End, usize, usize)> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["done", kind, n, out, err] = words[..] else { return None };
    let n = n.parse().ok()?;
    let end = match kind {
        "exit" => End::Exit(n),
        "signal" => End::Signal(n),
        _ => return None,
    };
    Some((end, out.parse().ok()?, err.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answers_first_line_is_read_and_nonsense_is_not() {
        assert_eq!(parse("done exit 3 12 0"), Some((End::Exit(3), 12, 0)));
        assert_eq!(parse("done signal 11 0 5"), Some((End::Signal(11), 0, 5)));
        for bad in
            ["", "done", "done exit 3 12", "done exit 256 0 0", "done jump 1 0 0", "done exit 1 -1 0", "x y z a b"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_answer_is_whole_or_none() {
        let answer = Answer { end: End::Exit(3), stdout: b"a\nb".to_vec(), stderr: b"c".to_vec() };
        assert_eq!(whole(b"done exit 3 3 1\na\nbc"), Some(answer));
        for bad in ["", "done exit 3 3 1", "done exit 3 3 1\na\nb", "done exit 3 3 1\na\nbcd", "done exit 3 0 0\n\n"] {
            assert_eq!(whole(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn an_order_keeps_any_bytes() {
        let args = ["a".to_owned(), "\n 2".to_owned()];
        assert_eq!(order(&args, b"\0\n"), b"test 2 2\n1\na3\n\n 2\0\n");
    }
}
