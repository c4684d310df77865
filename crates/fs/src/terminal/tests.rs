//! Tests of a terminal on a port made of two queues.

use super::*;
use crate::stream::transfer::{SliceSink, SliceSource};
use crate::test_host::Looks;
use std::collections::VecDeque;
use std::sync::Mutex as StdMutex;
use std::vec::Vec;

#[derive(Default)]
struct FakePort {
    input: StdMutex<VecDeque<u8>>,
    output: StdMutex<Vec<u8>>,
    end: StdMutex<bool>,
    readiness: Readiness,
}

impl FakePort {
    fn type_in(&self, bytes: &[u8]) {
        self.input.lock().unwrap().extend(bytes);
        self.readiness.notify();
    }
    fn shown(&self) -> Vec<u8> {
        core::mem::take(&mut self.output.lock().unwrap())
    }
}

impl Port for FakePort {
    fn write(&self, bytes: &[u8]) -> usize {
        self.output.lock().unwrap().extend(bytes);
        bytes.len()
    }
    fn read(&self, into: &mut [u8]) -> usize {
        let mut input = self.input.lock().unwrap();
        let n = into.len().min(input.len());
        into.iter_mut().zip(input.drain(..n)).for_each(|(to, from)| *to = from);
        n
    }
    fn unread(&self) -> usize {
        self.input.lock().unwrap().len()
    }
    fn writable(&self) -> bool {
        true
    }
    fn at_end(&self) -> bool {
        *self.end.lock().unwrap() && self.unread() == 0
    }
    fn readiness(&self) -> &Readiness {
        &self.readiness
    }
}

#[derive(Default)]
struct FakeProcesses {
    notified: StdMutex<Vec<(u32, Notice)>>,
    background: StdMutex<bool>,
    ended: StdMutex<Vec<(u32, u32)>>,
}

impl Processes for FakeProcesses {
    fn notify(&self, group: u32, notice: Notice) {
        self.notified.lock().unwrap().push((group, notice));
    }
    fn hung_up(&self, session: u32, foreground: u32) {
        self.ended.lock().unwrap().push((session, foreground));
    }
    fn check(&self, _session: u32, _foreground: u32, _writing: bool) -> Result<(), FsError> {
        if *self.background.lock().unwrap() { Err(FsError::Interrupted) } else { Ok(()) }
    }
}

fn terminal() -> (Arc<FakePort>, Arc<FakeProcesses>, Arc<Terminal>) {
    let (port, processes) =
        (Arc::try_new(FakePort::default()).unwrap(), Arc::try_new(FakeProcesses::default()).unwrap());
    let size = Size { rows: 24, columns: 80, width: 0, height: 0 };
    let t = Terminal::new(unsize!(port.clone()), unsize!(processes.clone()), size, 1).unwrap();
    (port, processes, t)
}
fn read(t: &Terminal, io: &Io<'_>, n: usize) -> Result<Vec<u8>, FsError> {
    let mut b = std::vec![0; n];
    let n = t.read(io, &mut SliceSink::new(&mut b))?;
    b.truncate(n);
    Ok(b)
}
fn raw(t: &Terminal, min: u8, time: u8) {
    let mut s = t.settings();
    s.local -= Local::CANONICAL | Local::ECHO;
    (s.characters.min, s.characters.time) = (min, time);
    t.set_settings(s, false);
}

#[test]
fn lines_are_read_one_at_a_time_and_in_parts() {
    let (port, _, t) = terminal();
    assert_eq!(read(&t, &Io::NOW, 10), Err(FsError::WouldBlock));
    port.type_in(b"first\rsecond\r");
    assert!(t.ready().contains(Ready::READ));
    assert_eq!(t.queued(), Ok(13));
    assert_eq!(read(&t, &Io::NOW, 3).unwrap(), b"fir");
    assert_eq!(read(&t, &Io::NOW, 99).unwrap(), b"st\n");
    assert_eq!(read(&t, &Io::NOW, 99).unwrap(), b"second\n");
    assert_eq!(port.shown(), b"first\r\nsecond\r\n");
    assert!(!t.ready().contains(Ready::READ));
}

#[test]
fn keys_reach_the_foreground_without_a_reader() {
    let (port, processes, t) = terminal();
    t.claim(5, 6, false).unwrap();
    port.type_in(b"\x03");
    t.set_foreground(9);
    port.type_in(b"\x1a");
    t.set_size(Size { rows: 1, columns: 2, width: 0, height: 0 });
    t.set_size(Size { rows: 1, columns: 2, width: 0, height: 0 });
    let want = [(6, Notice::Key(Key::Interrupt)), (9, Notice::Key(Key::Suspend)), (9, Notice::Resized)];
    assert_eq!(*processes.notified.lock().unwrap(), want);
    assert_eq!(t.claim(7, 7, false), Err(FsError::NotPermitted));
    t.release(5);
    assert_eq!(t.claim(7, 7, false), Ok(()));
}

#[test]
fn a_reader_sleeps_until_the_line_is_finished() {
    let looks = Looks::default();
    let (port, _, t) = terminal();
    std::thread::scope(|s| {
        let reader = s.spawn(|| read(&t, &Io { interrupted: &looks.ask(), ..Io::WAIT }, 99));
        looks.until(1);
        for part in [&b"slow"[..], b" typ", b"ing\r"] {
            assert!(!reader.is_finished());
            port.type_in(part);
        }
        assert_eq!(reader.join().unwrap().unwrap(), b"slow typing\n");
    });
}

#[test]
fn raw_reads_obey_minimum_and_time() {
    let (port, _, t) = terminal();
    raw(&t, 0, 0);
    assert_eq!(read(&t, &Io::WAIT, 10).unwrap(), b"");
    raw(&t, 0, 1);
    assert_eq!(read(&t, &Io::WAIT, 10).unwrap(), b"", "nothing for a tenth of a second");
    raw(&t, 2, 0);
    let looks = Looks::default();
    std::thread::scope(|s| {
        let reader = s.spawn(|| read(&t, &Io { interrupted: &looks.ask(), ..Io::WAIT }, 10));
        looks.until(1);
        port.type_in(b"a");
        looks.until(2);
        assert!(!reader.is_finished());
        port.type_in(b"b");
        assert_eq!(reader.join().unwrap().unwrap(), b"ab");
    });
    raw(&t, 5, 1);
    port.type_in(b"xy");
    assert_eq!(read(&t, &Io::WAIT, 10).unwrap(), b"xy", "no more within a tenth of a second");
}

#[test]
fn output_is_processed_and_stops_at_the_stop_character() {
    let (port, _, t) = terminal();
    t.write(&Io::WAIT, &mut SliceSource::new(b"a\nb\n")).unwrap();
    assert_eq!(port.shown(), b"a\r\nb\r\n");
    port.type_in(b"\x13");
    assert_eq!(t.write(&Io::NOW, &mut SliceSource::new(b"x")), Err(FsError::WouldBlock));
    let looks = Looks::default();
    std::thread::scope(|s| {
        let writer =
            s.spawn(|| t.write(&Io { interrupted: &looks.ask(), ..Io::WAIT }, &mut SliceSource::new(b"later")));
        looks.until(1);
        port.type_in(b"\x11");
        assert_eq!(writer.join().unwrap(), Ok(5));
    });
}

#[test]
fn a_closed_port_ends_the_file_and_background_reads_fail() {
    let (port, processes, t) = terminal();
    port.type_in(b"last");
    *port.end.lock().unwrap() = true;
    port.readiness.notify();
    assert_eq!(read(&t, &Io::WAIT, 9).unwrap(), b"");
    *processes.background.lock().unwrap() = true;
    assert_eq!(read(&t, &Io::WAIT, 9), Err(FsError::Interrupted));
}

#[test]
fn more_than_the_queue_holds_waits_in_the_port() {
    let (port, _, t) = terminal();
    let lines = b"0123456789abcde\n".repeat(1000);
    port.type_in(&lines);
    let mut got = Vec::new();
    while got.len() < lines.len() {
        got.extend(read(&t, &Io::NOW, 999).unwrap());
    }
    assert!(got == lines);
}

/// The editor's memory is allocated once, so bytes typed into a full editor must fit, or wait.
#[test]
fn a_longest_line_fits_and_ends_of_file_wait_in_the_port() {
    let (port, _, t) = terminal();
    let mut typed = b"a\n".repeat(2047);
    typed.extend([b'x'; 4095]);
    typed.extend(b"\n");
    typed.extend(b"b\n".repeat(1000));
    port.type_in(&typed);
    let mut got = Vec::new();
    while got.len() < typed.len() {
        got.extend(read(&t, &Io::NOW, 9999).unwrap());
    }
    assert!(got == typed);
    port.type_in(&[4; 20_000]);
    assert!(port.unread() > 0);
    (0..20_000).for_each(|_| assert_eq!(read(&t, &Io::NOW, 9).unwrap(), b""));
    assert_eq!((read(&t, &Io::NOW, 9), port.unread()), (Err(FsError::WouldBlock), 0));
}

fn pair() -> (Arc<FakeProcesses>, Arc<pty::Pty>) {
    let processes = Arc::try_new(FakeProcesses::default()).unwrap();
    let pair = pty::Pty::new(unsize!(processes.clone()), Settings::default(), 7).unwrap();
    (processes, pair)
}

fn from_master(pair: &pty::Pty) -> Result<Vec<u8>, FsError> {
    let mut b = [0; 64];
    let n = pair.read_master(&Io::NOW, &mut SliceSink::new(&mut b))?;
    Ok(b[..n].to_vec())
}

#[test]
fn bytes_of_the_master_are_typed_and_those_of_the_terminal_are_read_from_it() {
    let (processes, pair) = pair();
    assert_eq!(pty::Pty::open_slave(&pair).err(), Some(FsError::Io));
    pair.set_locked(false);
    assert_eq!(from_master(&pair), Err(FsError::WouldBlock));
    let slave = pty::Pty::open_slave(&pair).unwrap();
    assert_eq!(pair.write_master(&Io::NOW, &mut SliceSource::new(b"ab\r")), Ok(3));
    assert_eq!(from_master(&pair).unwrap(), b"ab\r\n");
    let mut line = [0; 8];
    assert_eq!(slave.read(&Io::NOW, &mut SliceSink::new(&mut line)), Ok(3));
    drop(slave);
    assert_eq!((from_master(&pair), pair.master_ready()), (Err(FsError::Io), Ready::WRITE | Ready::HANGUP));
    let slave = pty::Pty::open_slave(&pair).unwrap();
    pair.terminal().claim(5, 6, false).unwrap();
    pair.close_master();
    assert_eq!(*processes.ended.lock().unwrap(), [(5, 6)]);
    assert_eq!(slave.read(&Io::NOW, &mut SliceSink::new(&mut line)), Ok(0));
    assert_eq!(slave.write(&Io::NOW, &mut SliceSource::new(b"x")), Err(FsError::Io));
    assert_eq!(pty::Pty::open_slave(&pair).err(), Some(FsError::Io));
}

#[test]
fn a_full_pair_loses_no_byte() {
    let (_, pair) = pair();
    pair.set_locked(false);
    let slave = pty::Pty::open_slave(&pair).unwrap();
    let plain = Settings { input: Input::empty(), local: Local::empty(), ..Settings::default() };
    pair.terminal().set_settings(plain, false);
    let block = [b'x'; 1000];
    let mut sent = 0;
    while let Ok(n) = pair.write_master(&Io::NOW, &mut SliceSource::new(&block)) {
        sent += n;
    }
    let mut received = 0;
    let mut some = [0; 777];
    while let Ok(n) = slave.read(&Io::NOW, &mut SliceSink::new(&mut some)) {
        received += n;
    }
    assert_eq!(received, sent);
}

#[test]
fn a_writer_that_must_not_wait_takes_only_what_fits() {
    let (_, pair) = pair();
    pair.set_locked(false);
    let slave = pty::Pty::open_slave(&pair).unwrap();
    let mut sent = 0;
    while let Ok(n) = slave.write(&Io::NOW, &mut SliceSource::new(b"0123456789\n")) {
        sent += n;
    }
    assert!(sent >= 3700 && !slave.ready().contains(Ready::WRITE));
    let mut received = 0;
    while let Ok(bytes) = from_master(&pair) {
        received += bytes.iter().filter(|&&b| b != b'\r').count();
    }
    assert_eq!(received, sent);
}

#[test]
fn without_memory_there_is_no_pair() {
    let processes = Arc::try_new(FakeProcesses::default()).unwrap();
    let refused = quire_heap::refusal::refused_each(false, |_| {
        pty::Pty::new(unsize!(processes.clone()), Settings::default(), 7).is_ok()
    });
    assert!(refused >= 8, "{refused}");
}
