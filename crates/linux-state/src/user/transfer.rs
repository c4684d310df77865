//! Copies of bytes between files and user memory.

use super::{UserMemory, in_user_space};
use crate::errno::Errno;
use crate::machine::UserAccess;
use quire_fs::{FsError, Sink, Source};
use quire_heap::Vec;

/// The most bytes that one call copies, as on Linux.
pub const MOST: usize = 0x7fff_f000;
/// The most vectors that one call accepts.
pub const VECTORS: usize = 1024;

/// A `struct iovec`: address and length.
pub type IoVec = [u64; 2];

/// The buffers of a call in user memory. One buffer needs no allocation.
pub enum Vectors {
    /// One buffer.
    One([IoVec; 1]),
    /// Several buffers.
    Many(Vec<IoVec>),
}

impl Vectors {
    /// One buffer of `len` bytes at `at`. EFAULT if it is not in user space, also beyond the most bytes of a call.
    pub fn one(at: u64, len: u64) -> Result<Self, Errno> {
        if !in_user_space(at, len as usize) {
            return Err(Errno::EFAULT);
        }
        Ok(Vectors::One([[at, len.min(MOST as u64)]]))
    }

    /// As [`one`](Self::one), for calls of sockets: as on Linux, bytes beyond the most of a call are not checked.
    pub fn cut(at: u64, len: u64) -> Result<Self, Errno> {
        Self::one(at, len.min(MOST as u64))
    }

    /// The `count` vectors at user address `at`. EINVAL if their number or a length is out of range; EFAULT if a buffer
    /// is not in user space.
    pub fn many<A: UserAccess>(user: &UserMemory<'_, A>, at: u64, count: u64) -> Result<Self, Errno> {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        let mut all: Vec<IoVec> = user.read_many(at, count, VECTORS)?;
        let mut room = MOST as u64;
        for [at, len] in &mut all {
            if *len > i64::MAX as u64 {
                return Err(Errno::EINVAL);
            }
            let whole = *len;
            *len = whole.min(room);
            room -= *len;
            // As on Linux, a single buffer is checked as far as it is used, and of several each as a whole.
            if !in_user_space(*at, if count == 1 { *len } else { whole } as usize) {
                return Err(Errno::EFAULT);
            }
        }
        Ok(Vectors::Many(all))
    }

    fn all(&self) -> &[IoVec] {
        match self {
            Vectors::One(one) => one,
            Vectors::Many(many) => many,
        }
    }

    /// Whether the buffers have no bytes at all. A call with vectors then does not reach the file, as on Linux.
    pub fn is_empty(&self) -> bool {
        self.all().iter().all(|vector| vector[1] == 0)
    }

    /// The buffers as a sink or a source of bytes.
    #[inline]
    pub fn transfer<'v, A: UserAccess>(&'v self, user: UserMemory<'v, A>) -> UserTransfer<'v, A> {
        match self {
            Vectors::One([[at, len]]) => {
                UserTransfer { user, at: *at, here: *len as usize, vectors: &[], left: *len as usize }
            }
            Vectors::Many(many) => {
                let left = many.iter().map(|v| v[1] as usize).sum();
                UserTransfer { user, at: 0, here: 0, vectors: many, left }
            }
        }
    }
}

/// A position in the buffers, which moves from the start of the first vector to the end of the last.
pub struct UserTransfer<'v, A: UserAccess> {
    user: UserMemory<'v, A>,
    /// The rest of the present vector: its address and length.
    at: u64,
    here: usize,
    /// The vectors after the present one.
    vectors: &'v [IoVec],
    left: usize,
}

impl<A: UserAccess> UserTransfer<'_, A> {
    /// Calls `copy(address, done, len)` for the next `len` bytes, and returns how many bytes were copied. `copy`
    /// returns how many bytes it has copied.
    #[inline]
    fn step(&mut self, len: usize, mut copy: impl FnMut(u64, usize, usize) -> usize) -> Result<usize, FsError> {
        // In most calls there is one vector, which has enough bytes.
        if len > self.here {
            return self.step_on(len, &mut copy);
        }
        let moved = copy(self.at, 0, len);
        self.advance(moved);
        if self.left != 0 {
            self.look();
        }
        if moved == 0 && len > 0 { Err(FsError::Fault) } else { Ok(moved) }
    }

    fn advance(&mut self, moved: usize) {
        self.at += moved as u64;
        self.here -= moved;
        self.left -= moved;
    }

    /// Ends a long transfer if the thread was killed: then the transfer has no more room and no more bytes.
    #[cold]
    #[inline(never)] // most transfers are of one piece, and need no registers for this
    fn look(&mut self) {
        if self.user.0.killed() {
            (self.here, self.vectors, self.left) = (0, &[], 0);
        }
    }

    /// [`step`](Self::step) for bytes in several vectors.
    #[inline(never)]
    fn step_on(&mut self, len: usize, copy: &mut dyn FnMut(u64, usize, usize) -> usize) -> Result<usize, FsError> {
        let mut done = 0;
        while done < len {
            if self.here == 0 {
                let Some((&[at, size], rest)) = self.vectors.split_first() else { break };
                (self.at, self.here, self.vectors) = (at, size as usize, rest);
                continue;
            }
            let n = self.here.min(len - done);
            let moved = copy(self.at, done, n);
            self.advance(moved);
            done += moved;
            if moved < n {
                return if done == 0 { Err(FsError::Fault) } else { Ok(done) };
            }
        }
        self.look();
        Ok(done)
    }
}

impl<A: UserAccess> Sink for UserTransfer<'_, A> {
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let user = UserMemory(self.user.0);
        self.step(bytes.len(), |at, done, n| match user.write_bytes(at, &bytes[done..done + n]) {
            Ok(()) => n,
            Err(bad) => n - bad.left.min(n),
        })
    }
    fn room(&self) -> usize {
        self.left
    }
    fn is_over(&self) -> bool {
        self.user.0.killed()
    }
}

impl<A: UserAccess> Source for UserTransfer<'_, A> {
    fn take(&mut self, into: &mut [u8]) -> Result<usize, FsError> {
        let user = UserMemory(self.user.0);
        let len = into.len();
        self.step(len, |at, done, n| match user.read_bytes(at, &mut into[done..done + n]) {
            Ok(()) => n,
            Err(bad) => n - bad.left.min(n),
        })
    }
    fn left(&self) -> usize {
        self.left
    }
}

/// The `msghdr` of a program.
pub struct MessageHeader {
    /// The address of the `msghdr` in user memory.
    pub at: u64,
    pub name: u64,
    pub name_len: i32,
    pub vectors: Vectors,
    pub control: u64,
    pub control_len: u64,
}

/// The size of the longest socket address in bytes. Linux truncates longer addresses.
const NAME_MOST: i32 = 128;

impl MessageHeader {
    /// Reads the header at user address `at`, and its vectors. EMSGSIZE if there are too many vectors, EINVAL if a
    /// length is negative.
    pub fn read<A: UserAccess>(user: &UserMemory<'_, A>, at: u64) -> Result<Self, Errno> {
        let [name, name_len, vectors, count, control, control_len, _flags] = user.read::<[u64; 7]>(at)?;
        if count > VECTORS as u64 {
            return Err(Errno::EMSGSIZE);
        }
        let name_len = name_len as i32;
        if name_len < 0 {
            return Err(Errno::EINVAL);
        }
        let vectors = Vectors::many(user, vectors, count)?;
        Ok(MessageHeader { at, name, name_len: name_len.min(NAME_MOST), vectors, control, control_len })
    }
}
