//! Control messages: the open files and the credentials that a message carries, and [`headers`] of datagrams.

use crate::socket::{headers, raw};
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::{Choice, Credentials, FILES_MAX, Family};

/// The most bytes of control messages in one call, as Linux's `optmem_max`.
const MOST: u64 = 128 << 10;
/// The size of a `cmsghdr` in bytes: length, level, type.
const HEADER: usize = 16;
/// The size of a `ucred` in bytes.
const CREDENTIALS: usize = 12;

/// The parts of a sent message that are not bytes: files, credentials, and fields of the header.
pub(super) struct Sent<M: Machine> {
    pub files: Vec<Arc<File<M>>>,
    pub credentials: Option<Credentials>,
    pub choice: Choice,
}

impl<M: Machine> Sent<M> {
    pub(super) fn nothing() -> Self {
        Sent { files: Vec::new(), credentials: None, choice: Choice::default() }
    }
}

const fn align(len: usize) -> usize {
    len.next_multiple_of(8)
}

pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}

/// One control message: its level and its type, and its data.
struct Message<'a> {
    level: u32,
    kind: u32,
    data: &'a [u8],
}

/// The control messages in a buffer. As on Linux, a header that is cut off by the end of the buffer is ignored.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Errno>> {
    core::iter::from_fn(move || {
        let (header, data) = rest.split_first_chunk::<HEADER>()?;
        let len = u64::from_le_bytes(*header.first_chunk()?);
        let Some(len) = usize::try_from(len).ok().filter(|len| (HEADER..=rest.len()).contains(len)) else {
            rest = &[];
            return Some(Err(Errno::EINVAL));
        };
        let data = &data[..len - HEADER];
        rest = rest.get(align(len)..).unwrap_or(&[]);
        Some(Ok(Message { level: word(header, 8), kind: word(header, 12), data }))
    })
}

/// The control messages that a kind of socket supports, in addition to the messages that all sockets support.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Knows {
    /// Files and credentials, for Unix sockets.
    Unix,
    /// Fields of the datagram header, for UDP sockets of this family.
    Headers(Family),
    /// No further messages, for all other sockets.
    Nothing,
}

/// Reads the control messages of `len` bytes at `at`.
pub(super) fn read<M: Machine>(ctx: &Ctx<'_, M>, at: u64, len: u64, by: Knows) -> Result<Sent<M>, Errno> {
    let mut sent = Sent::nothing();
    if len > MOST {
        return Err(Errno::ENOBUFS);
    }
    if at == 0 || len == 0 {
        return Ok(sent);
    }
    let bytes: Vec<u8> = ctx.user().read_many(at, len as usize, MOST as usize)?;
    for message in messages(&bytes) {
        let Message { level, kind, data } = message?;
        match (level, kind) {
            // As on Linux, sockets that are not Unix sockets ignore these two messages.
            (raw::SOL_SOCKET, raw::SCM_RIGHTS | raw::SCM_CREDENTIALS) if by != Knows::Unix => {}
            (raw::SOL_SOCKET, raw::SCM_RIGHTS) => {
                if sent.files.len() + data.len() / 4 > FILES_MAX {
                    return Err(Errno::EINVAL);
                }
                sent.files.try_reserve(data.len() / 4)?;
                for fd in data.chunks_exact(4) {
                    sent.files.push_reserved(ctx.file(word(fd, 0) as i32)?);
                }
            }
            (raw::SOL_SOCKET, raw::SCM_CREDENTIALS) => {
                if data.len() != CREDENTIALS {
                    return Err(Errno::EINVAL);
                }
                let given = Credentials { pid: word(data, 0), uid: word(data, 4), gid: word(data, 8) };
                sent.credentials = Some(may_send(ctx, given)?);
            }
            (raw::SOL_SOCKET, _) => return Err(Errno::EINVAL),
            _ => {
                if let Knows::Headers(family) = by {
                    headers::choose(&mut sent.choice, family, (level, kind), data)?;
                }
            }
        }
    }
    Ok(sent)
}

/// Checks that the caller may send these credentials. The credentials must be the caller's own, or the caller must have
/// the capabilities to send others.
fn may_send<M: Machine>(ctx: &Ctx<'_, M>, given: Credentials) -> Result<Credentials, Errno> {
    let own = ctx.credentials();
    let pid = given.pid == ctx.pid() || own.may(cap::SYS_ADMIN);
    let uid = [own.real_user, own.effective_user, own.saved_user].contains(&given.uid) || own.may(cap::SETUID);
    let gid = [own.real_group, own.effective_group, own.saved_group].contains(&given.gid) || own.may(cap::SETGID);
    if !(pid && uid && gid) {
        return Err(Errno::EPERM);
    }
    let ids = &ctx.linux.ids;
    let exists = given.pid == ctx.pid() || ids.process_of_thread(given.pid).is_some() || ids.group(given.pid).is_some();
    if exists { Ok(given) } else { Err(Errno::ESRCH) }
}

/// Stores control messages into a receiver's buffer.
pub(super) struct Writer {
    at: u64,
    room: usize,
    /// The number of stored bytes.
    pub used: usize,
    /// Whether a message did not fit.
    pub truncated: bool,
}

impl Writer {
    /// A writer for `room` bytes at user address `at`. A null address means no buffer.
    pub(super) fn new(at: u64, room: u64) -> Self {
        let room = if at == 0 { 0 } else { room.min(i32::MAX as u64) as usize };
        Writer { at, room, used: 0, truncated: false }
    }

    /// Stores a message with `data`, or the part of it that fits.
    pub(super) fn put<M: Machine>(
        &mut self,
        ctx: &Ctx<'_, M>,
        (level, kind): (u32, u32),
        data: &[u8],
    ) -> Result<(), Errno> {
        let room = self.room - self.used;
        if room < HEADER {
            self.truncated = true;
            return Ok(());
        }
        let whole = HEADER + data.len();
        let len = whole.min(room);
        self.truncated |= len < whole;
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&(len as u64).to_le_bytes());
        header[8..12].copy_from_slice(&level.to_le_bytes());
        header[12..].copy_from_slice(&kind.to_le_bytes());
        let at = self.at + self.used as u64;
        ctx.user().write_bytes(at, &header)?;
        ctx.user().write_bytes(at + HEADER as u64, &data[..len - HEADER])?;
        self.used += align(len).min(room);
        Ok(())
    }

    /// Stores credentials.
    pub(super) fn credentials<M: Machine>(&mut self, ctx: &Ctx<'_, M>, given: Credentials) -> Result<(), Errno> {
        let mut data = [0; CREDENTIALS];
        for (to, word) in data.chunks_exact_mut(4).zip([given.pid, given.uid, given.gid]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        self.put(ctx, (raw::SOL_SOCKET, raw::SCM_CREDENTIALS), &data)
    }

    /// Installs descriptors for the first of the `files`, up to the number that fits into the buffer, and stores the
    /// descriptors. The remaining files are closed.
    pub(super) fn files<M: Machine>(
        &mut self,
        ctx: &Ctx<'_, M>,
        files: Vec<Arc<File<M>>>,
        close_on_exec: bool,
    ) -> Result<(), Errno> {
        let fit = (self.room - self.used).saturating_sub(HEADER) / 4;
        let mut data = [0; 4 * FILES_MAX];
        let (count, mut given) = (files.len(), 0);
        for file in files.into_iter().take(fit) {
            // As on Linux, the list ends if the descriptor table is full.
            let Ok(fd) = ctx.install(file, close_on_exec) else { break };
            data[4 * given..][..4].copy_from_slice(&(fd as u32).to_le_bytes());
            given += 1;
        }
        self.truncated |= given < count;
        if given == 0 { Ok(()) } else { self.put(ctx, (raw::SOL_SOCKET, raw::SCM_RIGHTS), &data[..4 * given]) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn bytes(len: u64, kind: u32, data: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        for part in [&len.to_le_bytes()[..], &1u32.to_le_bytes(), &kind.to_le_bytes(), data] {
            all.try_extend_from_slice(part).unwrap();
        }
        all
    }

    #[test]
    fn messages_are_found_by_their_lengths() {
        let mut two = bytes(20, 1, &[7, 0, 0, 0, 0, 0, 0, 0]);
        two.try_extend_from_slice(&bytes(28, 2, &[0; 12])).unwrap();
        let found: std::vec::Vec<_> = messages(&two).map(|m| m.map(|m| (m.level, m.kind, m.data.len()))).collect();
        assert_eq!(found, [Ok((1, 1, 4)), Ok((1, 2, 12))]);
        // A header that does not fit ends the list.
        assert_eq!(messages(&two[..24 + 8]).count(), 1);
    }

    #[test]
    fn lengths_that_reach_outside_are_refused() {
        for len in [0, 15, 25, u64::MAX] {
            let one = bytes(len, 1, &[0; 8]);
            let found: std::vec::Vec<_> = messages(&one).map(|m| m.map(|_| ())).collect();
            assert_eq!(found, [Err(Errno::EINVAL)], "{len}");
        }
    }
}
