//! Socket calls with addresses, control messages, options and netlink requests that are right or nearly so.
//!
//! The rules of the target `calls` must hold. No socket may be left when the processes of an input have ended.

use crate::Input;
use crate::calls;
use crate::steps::{self, Steps, about, one_of};

mod number {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const CLOSE: u16 = 3;
    pub const POLL: u16 = 7;
    pub const IOCTL: u16 = 16;
    pub const DUP: u16 = 32;
    pub const SOCKET: u16 = 41;
    pub const CONNECT: u16 = 42;
    pub const SENDTO: u16 = 44;
    pub const RECVFROM: u16 = 45;
    pub const SENDMSG: u16 = 46;
    pub const RECVMSG: u16 = 47;
    pub const SHUTDOWN: u16 = 48;
    pub const BIND: u16 = 49;
    pub const LISTEN: u16 = 50;
    pub const GETSOCKNAME: u16 = 51;
    pub const GETPEERNAME: u16 = 52;
    pub const SOCKETPAIR: u16 = 53;
    pub const SETSOCKOPT: u16 = 54;
    pub const GETSOCKOPT: u16 = 55;
    pub const FCNTL: u16 = 72;
    pub const ACCEPT4: u16 = 288;
    pub const EPOLL_CREATE1: u16 = 291;
    pub const EPOLL_WAIT: u16 = 232;
    pub const EPOLL_CTL: u16 = 233;
    pub const RECVMMSG: u16 = 299;
    pub const SENDMMSG: u16 = 307;
    pub const CLOSE_RANGE: u16 = 436;
}

const UNIX: u64 = 1;
const INET: u64 = 2;
const INET6: u64 = 10;
const NETLINK: u64 = 16;
const NONBLOCK: u64 = 0o4000;
const DONTWAIT: u64 = 0x40;

/// Runs the calls that the bytes choose, with their memory.
pub fn run(data: &[u8]) {
    let _results = calls::results(&steps::of(data, step));
}

/// Chooses a file descriptor, mostly a low one.
fn descriptor(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        255 => u64::MAX,
        254 => u64::from(input.byte()),
        n => 3 + u64::from(n) % 9,
    }
}

/// Chooses the flags of a call, which mostly does not wait.
fn flags(input: &mut Input<'_>) -> u64 {
    let wait = if input.byte() < 224 { DONTWAIT } else { 0 };
    // The flags are MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_NOSIGNAL, MSG_MORE, MSG_CMSG_CLOEXEC, MSG_OOB.
    wait | one_of(input, &[0, 0, 0, 0x2, 0x20, 0x100, 0x4000, 0x8000, 0x4000_0000, 0x1])
}

/// Makes a socket address, and a length.
fn address(input: &mut Input<'_>) -> (Vec<u8>, u64) {
    let port = [0u16, 5000, 5001, 5002][input.below(4)].to_be_bytes();
    let mut bytes = Vec::new();
    match input.below(10) {
        0 | 1 => {
            bytes.extend((UNIX as u16).to_le_bytes());
            bytes.extend([0, b'a' + input.byte() % 3]);
        }
        2 => {
            bytes.extend((UNIX as u16).to_le_bytes());
            bytes.extend(["/tmp/s\0", "/tmp/none/s\0", "s\0", "", "/dev\0"][input.below(5)].bytes());
        }
        3..=5 => {
            bytes.extend((INET as u16).to_le_bytes());
            bytes.extend(port);
            bytes.extend([[127, 0, 0, 1], [0; 4], [127, 9, 9, 9], [10, 0, 0, 1], [255; 4]][input.below(5)]);
            bytes.extend([0; 8]);
        }
        6 | 7 => {
            bytes.extend((INET6 as u16).to_le_bytes());
            bytes.extend(port);
            bytes.extend([0; 4]);
            let mut ip = [0; 16];
            match input.below(4) {
                0 => ip[15] = 1,
                1 => ip[10..].copy_from_slice(&[255, 255, 127, 0, 0, 1]),
                2 => ip[0] = 0xfe,
                _ => {}
            }
            bytes.extend(ip);
            bytes.extend([0; 4]);
        }
        8 => {
            bytes.extend((NETLINK as u16).to_le_bytes());
            bytes.extend([0; 2]);
            bytes.extend(u32::from(input.byte()).to_le_bytes());
            bytes.extend(u32::from(input.byte()).to_le_bytes());
        }
        _ => {
            let len = input.below(40);
            bytes.extend(input.take(len));
        }
    }
    let len = about(input, bytes.len());
    (bytes, len)
}

/// Makes one netlink request or several.
fn request(input: &mut Input<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..1 + input.below(3) {
        let mut body = vec![[0, 2, 10, 17][input.below(4)]];
        let front = [16, 8, 12, 4][input.below(4)];
        body.extend(input.take(front - 1));
        body.resize(front, 0);
        for _ in 0..input.below(4) {
            let len = input.below(12);
            let mut value = if input.byte() < 64 { b"lo\0".to_vec() } else { input.take(len).to_vec() };
            body.extend((about(input, 4 + value.len()) as u16).to_le_bytes());
            body.extend((one_of(input, &[1, 2, 3, 4, 15, 29, 53, 0x8003]) as u16).to_le_bytes());
            value.resize(value.len().next_multiple_of(4), 0);
            body.extend(value);
        }
        all.extend((about(input, 16 + body.len()) as u32).to_le_bytes());
        all.extend((one_of(input, &[16, 18, 20, 22, 24, 26, 30, 34, 38, 0, 3, 124]) as u16).to_le_bytes());
        all.extend((one_of(input, &[0x301, 1, 5, 0x100, 0x505]) as u16).to_le_bytes());
        all.extend(u32::from(input.byte()).to_le_bytes());
        all.extend([0; 4]);
        all.extend(body);
    }
    all
}

/// Makes the bytes that a call sends.
fn payload(input: &mut Input<'_>) -> Vec<u8> {
    match input.below(4) {
        0 => request(input),
        1 => Vec::new(),
        _ => {
            let len = input.below(100);
            let mut bytes = input.take(len).to_vec();
            bytes.resize(len, 7);
            bytes
        }
    }
}

/// Makes control messages: descriptors, credentials and others.
fn control(input: &mut Input<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..input.below(4) {
        let data = match input.below(4) {
            0 | 1 => (0..1 + input.below(4)).flat_map(|_| (descriptor(input) as u32).to_le_bytes()).collect(),
            2 => [0u32, 65534, 65534].iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>(),
            _ => {
                let len = input.below(30);
                input.take(len).to_vec()
            }
        };
        all.extend(about(input, 16 + data.len()).to_le_bytes());
        all.extend((one_of(input, &[1, 1, 1, 0, 6, 41]) as u32).to_le_bytes());
        all.extend((one_of(input, &[1, 1, 2, 3, 29]) as u32).to_le_bytes());
        all.extend(data);
        all.resize(all.len().next_multiple_of(8), 0);
    }
    all
}

/// Makes a `msghdr` for sending or receiving.
fn header(input: &mut Input<'_>, steps: &mut Steps, sends: bool) -> Vec<u8> {
    let (name, name_len) = match input.below(3) {
        0 if sends => {
            let (bytes, len) = address(input);
            (steps.poke(&bytes), len)
        }
        0 => (steps.poke(&[0; 128]), about(input, 128)),
        _ => (0, 0),
    };
    let mut vectors = Vec::new();
    for _ in 0..input.below(4) {
        let bytes = if sends { payload(input) } else { vec![0; input.below(100)] };
        vectors.extend(steps.poke(&bytes).to_le_bytes());
        vectors.extend(about(input, bytes.len()).to_le_bytes());
    }
    let count = about(input, vectors.len() / 16);
    let vectors = steps.poke(&vectors);
    let control = if sends { control(input) } else { vec![0; input.below(128)] };
    let control_len = about(input, control.len());
    let control = if control.is_empty() { 0 } else { steps.poke(&control) };
    [name, name_len & 0xffff_ffff, vectors, count, control, control_len, 0].map(u64::to_le_bytes).concat()
}

/// Chooses the level, the name and the value of an option.
fn option(input: &mut Input<'_>, steps: &mut Steps) -> (u64, u64, u64, u64) {
    let level = one_of(input, &[1, 1, 1, 6, 0, 41, 270, 17]);
    let name = if input.byte() < 240 { u64::from(input.byte()) % 80 } else { input.long() };
    let value = match input.below(4) {
        0 => vec![0; 16],
        1 => 1u32.to_le_bytes().to_vec(),
        2 => u32::from(input.short()).to_le_bytes().to_vec(),
        _ => {
            let len = input.below(24);
            input.take(len).to_vec()
        }
    };
    let at = steps.poke(&value);
    (level, name, at, about(input, value.len()))
}

/// Makes descriptors 3 to 5 a listener, a client, and the accepted connection.
fn connection(input: &mut Input<'_>, steps: &mut Steps) {
    let (family, kind) = (one_of(input, &[UNIX, INET]), one_of(input, &[1, 1, 5]));
    let name = match family {
        UNIX => b"\x01\0\0a".to_vec(),
        _ => [&[2, 0, 0x13, 0x88, 127, 0, 0, 1][..], &[0; 8]].concat(),
    };
    let at = steps.poke(&name);
    steps.call(number::CLOSE_RANGE, &[3, u64::MAX >> 32]);
    steps.call(number::SOCKET, &[family, kind | NONBLOCK]);
    steps.call(number::BIND, &[3, at, name.len() as u64]);
    steps.call(number::LISTEN, &[3, one_of(input, &[0, 5])]);
    steps.call(number::SOCKET, &[family, kind | NONBLOCK]);
    steps.call(number::CONNECT, &[4, at, name.len() as u64]);
    steps.call(number::ACCEPT4, &[3, 0, 0, NONBLOCK]);
}

fn step(input: &mut Input<'_>, steps: &mut Steps) {
    if input.byte() < 8 {
        steps.refuse(input.below(32));
    }
    let fd = descriptor(input);
    match input.below(22) {
        0 => {
            let family = one_of(input, &[UNIX, INET, INET6, NETLINK, UNIX, NETLINK]);
            let kind = one_of(input, &[1, 2, 5, 3]) | if input.byte() < 200 { NONBLOCK } else { 0 };
            steps.call(number::SOCKET, &[family, kind, one_of(input, &[0, 0, 0, 6, 17])]);
        }
        1 => {
            let at = steps.poke(&[0; 8]);
            steps.call(number::SOCKETPAIR, &[UNIX, one_of(input, &[1, 2, 5]) | NONBLOCK, 0, at]);
        }
        which @ (2 | 3) => {
            let (bytes, len) = address(input);
            let at = steps.poke(&bytes);
            steps.call(if which == 2 { number::BIND } else { number::CONNECT }, &[fd, at, len]);
        }
        4 => steps.call(number::LISTEN, &[fd, one_of(input, &[0, 1, 5, u64::MAX])]),
        5 => {
            let (name, len) = (steps.poke(&[0; 112]), steps.poke(&(about(input, 112) as u32).to_le_bytes()));
            steps.call(number::ACCEPT4, &[fd, one_of(input, &[0, name]), len, NONBLOCK]);
        }
        6 => {
            let (bytes, (name, len)) = (payload(input), address(input));
            let (at, count) = (steps.poke(&bytes), about(input, bytes.len()));
            let name = steps.poke(&name);
            steps.call(number::SENDTO, &[fd, at, count, flags(input), one_of(input, &[0, name]), len]);
        }
        7 => {
            let (room, name) = (input.below(300), steps.poke(&[0; 112]));
            let (at, len) = (steps.poke(&vec![0; room]), steps.poke(&112u32.to_le_bytes()));
            steps.call(number::RECVFROM, &[fd, at, about(input, room), flags(input), one_of(input, &[0, name]), len]);
        }
        8..=10 => {
            let header = header(input, steps, true);
            let at = steps.poke(&header);
            steps.call(number::SENDMSG, &[fd, at, flags(input)]);
        }
        11 | 12 => {
            let header = header(input, steps, false);
            let at = steps.poke(&header);
            steps.call(number::RECVMSG, &[fd, at, flags(input)]);
        }
        which @ (13 | 14) => {
            let headers: Vec<u8> = (0..1 + input.below(3))
                .flat_map(|_| [header(input, steps, which == 13), vec![0; 8]].concat())
                .collect();
            let (count, at) = (about(input, headers.len() / 64), steps.poke(&headers));
            let number = if which == 13 { number::SENDMMSG } else { number::RECVMMSG };
            steps.call(number, &[fd, at, count, flags(input) | DONTWAIT, 0]);
        }
        15 => steps.call(number::SHUTDOWN, &[fd, one_of(input, &[0, 1, 2])]),
        16 => {
            let (name, len) = (steps.poke(&[0; 112]), steps.poke(&(about(input, 112) as u32).to_le_bytes()));
            let number = [number::GETSOCKNAME, number::GETPEERNAME][input.below(2)];
            steps.call(number, &[fd, name, len]);
        }
        17 => {
            let (level, name, at, len) = option(input, steps);
            steps.call(number::SETSOCKOPT, &[fd, level, name, at, len]);
        }
        18 => {
            let (level, name, at, len) = option(input, steps);
            let len = steps.poke(&(len as u32).to_le_bytes());
            steps.call(number::GETSOCKOPT, &[fd, level, name, at, len]);
        }
        19 => {
            let at = steps.poke(&[[b"lo\0".to_vec(), vec![0; 37]].concat(), vec![0; 8]][input.below(2)]);
            // The requests are FIONREAD, FIONBIO, FIOASYNC, SIOCATMARK, SIOCGIFCONF and other SIOCGIF*.
            let request = one_of(input, &[0x541b, 0x5421, 0x5452, 0x8905, 0x8912, 0x8913, 0x8915, 0x8927, 0x8933]);
            steps.call(number::IOCTL, &[fd, request, at]);
        }
        20 => {
            let (at, len) = (steps.poke(&[7; 40]), about(input, 40));
            steps.call([number::READ, number::WRITE][input.below(2)], &[fd, at, len]);
        }
        _ => match input.below(7) {
            6 => connection(input, steps),
            0 => steps.call(number::DUP, &[fd]),
            1 => {
                let polled = [(fd as u32).to_le_bytes(), (u32::from(input.byte())).to_le_bytes()].concat();
                let at = steps.poke(&polled);
                steps.call(number::POLL, &[at, 1, 0]);
            }
            2 | 3 => {
                steps.call(number::CLOSE, &[3]);
                steps.call(number::EPOLL_CREATE1, &[0]);
                let event = steps.poke(&[[input.byte(), 0, 0, 0x80], [0; 4], [0; 4]].concat());
                for fd in [fd, descriptor(input)] {
                    steps.call(number::EPOLL_CTL, &[3, one_of(input, &[1, 1, 2, 3]), fd, event]);
                }
                let events = steps.poke(&[0; 36]);
                steps.call(number::EPOLL_WAIT, &[3, events, 3, 0]);
            }
            4 => steps.call(number::FCNTL, &[fd, one_of(input, &[4, 8, 9]), one_of(input, &[0, NONBLOCK])]),
            _ => steps.call(number::CLOSE, &[fd]),
        },
    }
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

    const WANTED: &[u16] = &[
        number::READ,
        number::WRITE,
        number::CLOSE,
        number::POLL,
        number::IOCTL,
        number::DUP,
        number::SOCKET,
        number::CONNECT,
        number::SENDTO,
        number::RECVFROM,
        number::SENDMSG,
        number::RECVMSG,
        number::SHUTDOWN,
        number::BIND,
        number::LISTEN,
        number::GETSOCKNAME,
        number::GETPEERNAME,
        number::SOCKETPAIR,
        number::SETSOCKOPT,
        number::GETSOCKOPT,
        number::FCNTL,
        number::ACCEPT4,
        number::EPOLL_CREATE1,
        number::EPOLL_WAIT,
        number::EPOLL_CTL,
        number::RECVMMSG,
        number::SENDMMSG,
    ];
}
