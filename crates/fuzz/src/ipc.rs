//! Calls of System V IPC and of POSIX message queues, with arguments that are right or nearly so.
//!
//! The rules of the target `calls` must hold, and process 1 must be able to remove all objects afterwards.

use crate::Input;
use crate::calls;
use crate::steps::{self, Steps, about, one_of};

mod number {
    pub const SHMGET: u16 = 29;
    pub const SHMAT: u16 = 30;
    pub const SHMCTL: u16 = 31;
    pub const SEMGET: u16 = 64;
    pub const SEMOP: u16 = 65;
    pub const SEMCTL: u16 = 66;
    pub const SHMDT: u16 = 67;
    pub const MSGGET: u16 = 68;
    pub const MSGSND: u16 = 69;
    pub const MSGRCV: u16 = 70;
    pub const MSGCTL: u16 = 71;
    pub const SEMTIMEDOP: u16 = 220;
    pub const FORK: u16 = 57;
    pub const EXIT: u16 = 60;
    pub const CLOSE: u16 = 3;
    pub const MQ_OPEN: u16 = 240;
    pub const MQ_UNLINK: u16 = 241;
    pub const MQ_TIMEDSEND: u16 = 242;
    pub const MQ_TIMEDRECEIVE: u16 = 243;
    pub const MQ_NOTIFY: u16 = 244;
    pub const MQ_GETSETATTR: u16 = 245;
}

const NOWAIT: u64 = 0o4000;
/// Addresses at which segments are attached.
const PLACES: [u64; 4] = [0, 0x7000_0000, 0x7000_1000, 0x7000_0800];

/// Runs the calls that the bytes choose, with their memory.
pub fn run(data: &[u8]) {
    let _results = calls::results(&steps::of(data, step));
}

fn key(input: &mut Input<'_>) -> u64 {
    one_of(input, &[0, 1, 2, 3])
}

/// Chooses the flags of a call that makes or finds an object.
fn opening(input: &mut Input<'_>) -> u64 {
    one_of(input, &[0o1600, 0o1666, 0o3600, 0, 0o1000, 0o400])
}

fn wait(input: &mut Input<'_>) -> u64 {
    if input.byte() < 230 { NOWAIT } else { 0 }
}

/// Chooses a command of a `*ctl` call: removal, change, statistics, or another.
fn command(input: &mut Input<'_>) -> u64 {
    one_of(input, &[0, 1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20])
}

fn step(input: &mut Input<'_>, steps: &mut Steps) {
    if input.byte() < 8 {
        steps.refuse(input.below(32));
    }
    let id = if input.byte() < 250 { 0 } else { input.long() & 0xffff_ffff };
    let named = |input: &mut Input<'_>, steps: &mut Steps, number: u16, arguments: &[u64]| {
        if id == 0 {
            steps.name(input.below(4));
        }
        steps.call(number, arguments);
    };
    match input.below(20) {
        0 => {
            let size = one_of(input, &[1, 4096, 4097, 65536, 0, 1 << 40]);
            steps.call(number::SHMGET, &[key(input), size, opening(input)]);
        }
        1 | 2 => {
            let place = PLACES[input.below(PLACES.len())];
            let arguments = [id, place, one_of(input, &[0, 0o10000, 0o20000, 0o40000])];
            named(input, steps, number::SHMAT, &arguments);
        }
        3 => steps.call(number::SHMDT, &[PLACES[input.below(PLACES.len())]]),
        4 => {
            let at = steps.poke(&structure(input));
            let arguments = [id, one_of(input, &[0, 1, 2, 3, 11, 12, 13, 14, 15]), at];
            named(input, steps, number::SHMCTL, &arguments);
        }
        5 => steps.call(number::SEMGET, &[key(input), one_of(input, &[1, 2, 5, 250, 0, 40000]), opening(input)]),
        6..=8 => {
            let mut operations = Vec::new();
            for _ in 0..1 + input.below(4) {
                operations.extend([input.byte() % 3, 0]);
                operations.extend((one_of(input, &[1, 2, 0, u64::MAX, u64::MAX - 1, 32767]) as i16).to_le_bytes());
                operations.extend((one_of(input, &[0, 0x1000]) as u16 | wait(input) as u16).to_le_bytes());
            }
            let (at, count) = (steps.poke(&operations), about(input, operations.len() / 6));
            let limit = steps.poke(&[0u64, 1_000_000].map(u64::to_le_bytes).concat());
            let arguments = [id, at, count, one_of(input, &[limit, limit, 0])];
            named(input, steps, number::SEMTIMEDOP, &arguments);
            let arguments = [id, at, count];
            named(input, steps, number::SEMOP, &arguments);
        }
        9 => {
            let at = steps.poke(&structure(input));
            let value = one_of(input, &[at, at, 0, 1, 32767, 32768]);
            let arguments = [id, u64::from(input.byte() % 4), command(input), value];
            named(input, steps, number::SEMCTL, &arguments);
        }
        10 => steps.call(number::MSGGET, &[key(input), opening(input)]),
        11 | 12 => {
            let len = input.below(100);
            let kind = one_of(input, &[1, 2, 3, 0, u64::MAX]);
            let at = steps.poke(&[&kind.to_le_bytes()[..], &vec![7; len]].concat());
            let arguments = [id, at, about(input, len), wait(input)];
            named(input, steps, number::MSGSND, &arguments);
        }
        13 => {
            let at = steps.poke(&[0; 108]);
            let kind = one_of(input, &[0, 1, 2, u64::MAX - 1, u64::MAX]);
            let flags = wait(input) | one_of(input, &[0, 0o10000, 0o20000, 0o40000]);
            let arguments = [id, at, about(input, 100), kind, flags];
            named(input, steps, number::MSGRCV, &arguments);
        }
        14 => {
            let at = steps.poke(&structure(input));
            let arguments = [id, one_of(input, &[0, 1, 2, 3, 11, 12, 13]), at];
            named(input, steps, number::MSGCTL, &arguments);
        }
        15 => {
            let name = steps.poke(["a\0", "b\0", "/\0", "\0"][input.below(4)].as_bytes());
            let attributes = [0, one_of(input, &[1, 2, 10, 11, 0]), one_of(input, &[1, 16, 8192, 8193, 0]), 0];
            let at = steps.poke(&attributes.map(u64::to_le_bytes).concat());
            let flags = one_of(input, &[0o102, 0o302, 2, 0, 1]) | wait(input);
            steps.call(number::MQ_OPEN, &[name, flags, 0o600, one_of(input, &[0, at])]);
        }
        16 | 17 => {
            let (at, fd, limit) = (steps.poke(&[7; 64]), 3 + u64::from(input.byte() % 4), steps.poke(&[0; 16]));
            match input.below(4) {
                0 | 1 => {
                    let priority = one_of(input, &[0, 1, 32767, 32768]);
                    steps.call(number::MQ_TIMEDSEND, &[fd, at, about(input, 16), priority, limit]);
                }
                2 => steps.call(number::MQ_TIMEDRECEIVE, &[fd, at, one_of(input, &[8192, 16, 1]), 0, limit]),
                _ => steps.call(number::MQ_GETSETATTR, &[fd, one_of(input, &[0, limit]), at]),
            }
        }
        18 => {
            let event = [one_of(input, &[10, 12, 99, 0]) << 32 | 5, one_of(input, &[0, 1, 2, 4])];
            let at = steps.poke(&[&event.map(u64::to_le_bytes).concat()[..], &[0; 48]].concat());
            steps.call(number::MQ_NOTIFY, &[3 + u64::from(input.byte() % 4), one_of(input, &[at, at, 0])]);
        }
        _ => match input.below(8) {
            0 => steps.call(number::FORK, &[]),
            1 => steps.call(number::EXIT, &[0]),
            2 => {
                let name = steps.poke(["a\0", "b\0"][input.below(2)].as_bytes());
                steps.call(number::MQ_UNLINK, &[name]);
            }
            _ => steps.call(number::CLOSE, &[3 + u64::from(input.byte() % 4)]),
        },
    }
}

/// Makes a structure that changes an object: its key, its owner, its mode, and other numbers.
fn structure(input: &mut Input<'_>) -> Vec<u8> {
    let owner = one_of(input, &[65534, 65534, 0, u64::MAX]) as u32;
    let mut bytes: Vec<u8> = [0, owner, owner, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(u32::from(input.short()).to_le_bytes());
    bytes.extend(input.take(40));
    bytes.resize(120, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_succeeds_in_some_input() {
        let done = steps::done_by_random_inputs(step);
        let fails = WANTED.iter().filter(|number| !done.contains(*number));
        assert_eq!(fails.collect::<Vec<_>>(), [] as [&u16; 0]);
    }

    /// All calls but `exit`, which never returns.
    const WANTED: &[u16] = &[
        number::SHMGET,
        number::SHMAT,
        number::SHMCTL,
        number::SEMGET,
        number::SEMOP,
        number::SEMCTL,
        number::SHMDT,
        number::MSGGET,
        number::MSGSND,
        number::MSGRCV,
        number::MSGCTL,
        number::SEMTIMEDOP,
        number::FORK,
        number::CLOSE,
        number::MQ_OPEN,
        number::MQ_UNLINK,
        number::MQ_TIMEDSEND,
        number::MQ_TIMEDRECEIVE,
        number::MQ_NOTIFY,
        number::MQ_GETSETATTR,
    ];
}
