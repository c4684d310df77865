//! A program's memory: some pages, with unmapped space between them. The kernel's accesses to it are simulated byte by
//! byte.

use quire_linux_state::user::USER_END;
use quire_linux_state::{BadAddress, UserAccess};
use quire_vm::PAGE_SIZE;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The mapped pages of a program.
#[derive(Default)]
pub struct Memory {
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl Memory {
    /// Maps a page at `at`. A new page is all zeroes.
    pub fn map(&self, at: u64) {
        assert!(at < USER_END);
        self.pages.borrow_mut().entry(at / PAGE_SIZE).or_insert_with(|| vec![0; PAGE_SIZE as usize]);
    }

    /// Unmaps the page at `at`.
    pub fn unmap(&self, at: u64) {
        self.pages.borrow_mut().remove(&(at / PAGE_SIZE));
    }

    /// Returns the byte at `at`; `None` if the page is not mapped.
    pub fn byte(&self, at: u64) -> Option<u8> {
        self.pages.borrow().get(&(at / PAGE_SIZE)).map(|p| p[(at % PAGE_SIZE) as usize])
    }

    /// Stores a byte. Returns `false` if the page is not mapped.
    pub fn store(&self, at: u64, byte: u8) -> bool {
        let mut pages = self.pages.borrow_mut();
        pages.get_mut(&(at / PAGE_SIZE)).map(|p| p[(at % PAGE_SIZE) as usize] = byte).is_some()
    }

    fn each(at: u64, len: usize, mut f: impl FnMut(usize, u64) -> bool) -> Result<(), BadAddress> {
        // The caller must have checked this, because the kernel's own addresses lie above.
        assert!(
            at.checked_add(len as u64).is_some_and(|end| end <= USER_END),
            "{len} bytes at {at:#x} are outside of the program's memory"
        );
        match (0..len).find(|i| !f(*i, at + *i as u64)) {
            None => Ok(()),
            Some(i) => Err(BadAddress { left: len - i }),
        }
    }

    fn word(&self, at: u64) -> Result<u32, BadAddress> {
        let mut word = [0; 4];
        Self::each(at, 4, |i, at| self.byte(at).map(|b| word[i] = b).is_some())?;
        Ok(u32::from_le_bytes(word))
    }
}

// SAFETY: the functions access only pages of this value, and the range that the caller guarantees to be valid.
unsafe impl UserAccess for Memory {
    unsafe fn copy_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<(), BadAddress> {
        // SAFETY: by the trait's contract `to` is valid for `len` bytes.
        Self::each(from, len, |i, at| self.byte(at).map(|b| unsafe { to.add(i).write(b) }).is_some())
    }
    unsafe fn copy_to_user(&self, to: u64, from: *const u8, len: usize) -> Result<(), BadAddress> {
        // SAFETY: by the trait's contract `from` is valid for `len` bytes.
        Self::each(to, len, |i, at| self.store(at, unsafe { from.add(i).read() }))
    }
    fn clear_user(&self, to: u64, len: usize) -> Result<(), BadAddress> {
        Self::each(to, len, |_, at| self.store(at, 0))
    }
    unsafe fn string_from_user(&self, to: *mut u8, from: u64, len: usize) -> Result<usize, BadAddress> {
        for i in 0..len {
            let byte = self.byte(from + i as u64).ok_or(BadAddress { left: len - i })?;
            // SAFETY: by the trait's contract `to` is valid for `len` bytes.
            unsafe { to.add(i).write(byte) };
            if byte == 0 {
                return Ok(i);
            }
        }
        Ok(len)
    }
    fn load_user_u32(&self, at: u64) -> Result<u32, BadAddress> {
        self.word(at)
    }
    fn peek_user_u32(&self, at: u64) -> Result<u32, BadAddress> {
        self.word(at)
    }
    fn compare_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress> {
        let was = self.word(at)?;
        if was == old {
            Self::each(at, 4, |i, at| self.store(at, new.to_le_bytes()[i]))?;
        }
        Ok(was)
    }
    fn try_exchange_user_u32(&self, at: u64, old: u32, new: u32) -> Result<u32, BadAddress> {
        self.compare_exchange_user_u32(at, old, new)
    }
}
