//! The store of a file: keeps the content of pages that are not resident.

use quire_vm::PAGE_SIZE;
use quire_vm::paging::io::{Direction, Request};
use quire_vm::paging::pager::{Pager, PagerError};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The store of a file of any length. It keeps only the pages that were ever written.
#[derive(Default)]
pub struct SparseStore {
    pages: Mutex<HashMap<u64, Box<[u8; PAGE_SIZE as usize]>>>,
}

impl Pager for SparseStore {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("sparse")
    }

    fn ident(&self) -> (u64, u64) {
        (1, 1)
    }

    fn in_memory(&self) -> bool {
        false
    }

    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        // A poisoned lock is ignored, because a page is always complete: a thread that panicked has left no page half
        // written.
        if let Some(kept) = self.pages.lock().unwrap_or_else(PoisonError::into_inner).get(&page) {
            frame.copy_from_slice(&kept[..]);
        }
        Ok(())
    }

    fn takes_writes(&self) -> bool {
        true
    }

    fn start(&self, request: Request) {
        for i in 0..request.len() {
            // SAFETY: a request owns its frames until it is completed. The frames of a write are only read.
            let frame = unsafe { &mut *request.frame(i).cast::<[u8; PAGE_SIZE as usize]>() };
            let page = request.first() + i as u64;
            match request.direction() {
                Direction::Read => {
                    if let Err(e) = self.fill(page, frame) {
                        request.complete(Err(e));
                        return;
                    }
                }
                Direction::Write => {
                    let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
                    let zeroes = || Box::new([0; PAGE_SIZE as usize]);
                    pages.entry(page).or_insert_with(zeroes).copy_from_slice(&frame[..]);
                }
            }
        }
        request.complete(Ok(()));
    }
}
