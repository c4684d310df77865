//! Checked and typed access to user memory. Every pointer from a program is used through this module.

pub mod transfer;

use crate::base::plain::Plain;
use crate::errno::Errno;
use crate::machine::{BadAddress, UserAccess};

use core::mem::{MaybeUninit, size_of, size_of_val};
use quire_heap::Vec;

/// The end of user space: one above the highest user address.
pub const USER_END: u64 = 0x7fff_ffff_f000;

impl From<BadAddress> for Errno {
    fn from(_: BadAddress) -> Self {
        Errno::EFAULT
    }
}

/// Whether the `len` bytes at `at` lie in user space, mapped or not.
pub fn in_user_space(at: u64, len: usize) -> bool {
    at <= USER_END && len as u64 <= USER_END - at
}

fn check(at: u64, len: usize) -> Result<(), BadAddress> {
    if in_user_space(at, len) { Ok(()) } else { Err(BadAddress { left: len }) }
}

/// User memory of the calling thread's address space.
pub struct UserMemory<'a, A: UserAccess>(pub &'a A);

impl<A: UserAccess> UserMemory<'_, A> {
    /// Fills `to` with bytes from user address `from`.
    pub fn read_bytes(&self, from: u64, to: &mut [u8]) -> Result<(), BadAddress> {
        check(from, to.len())?;
        // SAFETY: `to` is a slice, so it is valid for writes of its length.
        unsafe { self.0.copy_from_user(to.as_mut_ptr(), from, to.len()) }
    }

    /// Copies `from` to user address `to`.
    pub fn write_bytes(&self, to: u64, from: &[u8]) -> Result<(), BadAddress> {
        check(to, from.len())?;
        // SAFETY: `from` is a slice, so it is valid for reads of its length.
        unsafe { self.0.copy_to_user(to, from.as_ptr(), from.len()) }
    }

    /// Stores `len` zeroes at user address `to`.
    pub fn clear(&self, to: u64, len: usize) -> Result<(), BadAddress> {
        check(to, len)?;
        self.0.clear_user(to, len)
    }

    /// Loads a value from user address `from`.
    pub fn read<T: Plain>(&self, from: u64) -> Result<T, BadAddress> {
        check(from, size_of::<T>())?;
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the copy fills the whole value or fails, and every bit pattern is a `T`.
        unsafe {
            self.0.copy_from_user(value.as_mut_ptr().cast(), from, size_of::<T>())?;
            Ok(value.assume_init())
        }
    }

    /// Stores a value at user address `to`.
    pub fn write<T: Plain>(&self, to: u64, value: &T) -> Result<(), BadAddress> {
        check(to, size_of::<T>())?;
        // SAFETY: the value is valid for reads of its size, and has no padding.
        unsafe { self.0.copy_to_user(to, core::ptr::from_ref(value).cast(), size_of::<T>()) }
    }

    /// Whether the `len` bytes at user address `from` are zero.
    pub fn is_zero(&self, from: u64, len: usize) -> Result<bool, BadAddress> {
        check(from, len)?;
        let mut piece = [0u8; 64];
        let mut done = 0;
        while done < len {
            let n = piece.len().min(len - done);
            self.read_bytes(from + done as u64, &mut piece[..n])?;
            if piece[..n].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            done += n;
        }
        Ok(true)
    }

    /// Loads `count` values from user address `from`. EINVAL if there are more than `most`.
    pub fn read_many<T: Plain>(&self, from: u64, count: usize, most: usize) -> Result<Vec<T>, Errno> {
        if count > most {
            return Err(Errno::EINVAL);
        }
        let bytes = count * size_of::<T>();
        check(from, bytes)?;
        let mut out: Vec<T> = Vec::new();
        out.try_reserve_exact(count)?;
        // SAFETY: the capacity is reserved, and the copy fills all of it before the length is set.
        unsafe {
            self.0.copy_from_user(out.as_mut_ptr().cast(), from, bytes)?;
            out.set_len(count);
        }
        Ok(out)
    }

    /// Fills `to` with values from user address `from`.
    pub fn read_slice<T: Plain>(&self, from: u64, to: &mut [T]) -> Result<(), BadAddress> {
        check(from, size_of_val(to))?;
        // SAFETY: `to` is a slice, so it is valid for writes of its size. Every bit pattern is a `T`.
        unsafe { self.0.copy_from_user(to.as_mut_ptr().cast(), from, size_of_val(to)) }
    }

    /// Stores the values of `from` at user address `to`.
    pub fn write_slice<T: Plain>(&self, to: u64, from: &[T]) -> Result<(), BadAddress> {
        check(to, size_of_val(from))?;
        // SAFETY: `from` is a slice, so it is valid for reads of its size, and its values have no padding.
        unsafe { self.0.copy_to_user(to, from.as_ptr().cast(), size_of_val(from)) }
    }

    /// Loads a zero-terminated string, and returns it without the zero. The error is `too_long` if it has more than
    /// `most` bytes.
    pub fn read_string(&self, from: u64, most: usize, too_long: Errno) -> Result<Vec<u8>, Errno> {
        const STEP: usize = 128;
        let mut out = Vec::try_with_capacity(STEP.min(most + 1))?;
        loop {
            let want = STEP.min(most + 1 - out.len());
            out.try_reserve(want)?;
            let at = from.checked_add(out.len() as u64).ok_or(Errno::EFAULT)?;
            if self.read_string_step(at, &mut out, want)? < want {
                return Ok(out);
            }
            if out.len() > most {
                return Err(too_long);
            }
        }
    }

    /// Appends the bytes from user address `from` up to a zero byte to `out`, at most `want` bytes. Returns the number
    /// of appended bytes, which is below `want` if there was a zero byte. The caller has reserved room in `out`.
    pub fn read_string_step(&self, from: u64, out: &mut Vec<u8>, want: usize) -> Result<usize, Errno> {
        let room = USER_END.checked_sub(from).filter(|room| *room > 0).ok_or(Errno::EFAULT)?;
        let allowed = want.min(out.capacity() - out.len()).min(room as usize);
        // SAFETY: `allowed` bytes of capacity follow the length, and the call fills `got` of them.
        let got = unsafe {
            let got = self.0.string_from_user(out.as_mut_ptr().add(out.len()), from, allowed)?.min(allowed);
            out.set_len(out.len() + got);
            got
        };
        if got == allowed && allowed < want {
            // User space ends before a zero byte.
            return Err(Errno::EFAULT);
        }
        Ok(got)
    }
}
