//! Calls on objects.
#![forbid(unsafe_code)]

use super::pagers::{Blank, Disk, Pattern};
use super::world::THINGS;
use super::{Operation, inside};
use quire_vm::error::PagerError;
use quire_vm::object::SlotFilter;
use quire_vm::object::WeakRef;
use quire_vm::{ObjectRef, PAGE_SIZE};

/// The bytes of one read or write: some pages and a part of one.
const BYTES: usize = 9000;

pub const OPERATIONS: &[Operation] = &[
    ("new object", |p| {
        let ((n, vm), pages) = (p.system(), p.below(32));
        let bytes = if p.below(8) == 0 { p.input.long() } else { pages * PAGE_SIZE + p.below(2) };
        let quota = Some(p.world.quotas[n]);
        let object = match p.below(8) {
            0 => ObjectRef::anonymous(vm, if p.below(8) == 0 { p.input.long() } else { pages }),
            1 => ObjectRef::with_pager(vm, &Disk, bytes),
            2 => ObjectRef::with_pager(vm, &Pattern, bytes),
            3 => ObjectRef::with_pager(vm, p.world.file_store, bytes),
            4 => p.world.device(n),
            5 => ObjectRef::charged(vm, &Disk, bytes, quota),
            6 => ObjectRef::owning(vm, Pattern, bytes, None),
            _ => ObjectRef::charged(vm, &Blank, bytes, quota),
        };
        if let Ok(object) = object {
            p.keep_object(object);
        }
    }),
    ("read", |p| {
        let (object, at, gives) = (p.object().1, p.offset(), p.input.byte());
        let _typed = object.read(at, BYTES, &mut |bytes| match gives {
            0 => Err(()),
            3 => {
                let mut copy = [0; 8];
                let n = bytes.copy_to(&mut copy).max(bytes.copy_to_from(gives.into(), &mut copy));
                assert!(n <= copy.len() && bytes.is_empty() == bytes.get(0).is_none() && !bytes.as_ptr().is_null());
                Ok(n.min(bytes.len()))
            }
            1 => Ok(bytes.len() / 2),
            // A bad callback: it claims more bytes than it was given.
            2 => Ok(usize::MAX),
            _ => Ok(bytes.len()),
        });
    }),
    ("write", |p| {
        let (object, at, gives) = (p.object().1, p.offset(), p.input.byte());
        let mut calls = 0;
        let _typed = object.write(at, BYTES, &mut |bytes| {
            calls += 1;
            bytes.fill(gives);
            assert!(bytes.is_empty() || bytes.read().get(0).is_some() && !bytes.as_mut_ptr().is_null());
            let _n = bytes.copy_from(&[gives; 3]).max(bytes.copy_from_to(gives.into(), &[gives]));
            match gives {
                0 => Err(()),
                1 => Ok(0),
                2 => Ok(usize::MAX),
                3 if calls < 4 => Ok(1),
                _ => Ok(bytes.len()),
            }
        });
    }),
    ("allocate", |p| {
        let (object, pages) = (p.object().1, p.pages());
        object.keep_resident(p.flip());
        let weak = WeakRef::empty(p.vm());
        weak.clear();
        assert!(weak.upgrade().is_none());
        // The range is limited, because the disk accepts everything. An unlimited call would allocate each page that an
        // object can have.
        let pages = pages.start..pages.end.min(pages.start.saturating_add(4096));
        let _typed = object.allocate(pages).map_err(|refused| refused.of_caller::<u8>());
    }),
    ("zero", |p| {
        let (object, from, to) = (p.object().1, p.offset(), p.offset());
        // The range is limited, because the disk is asked for each page.
        let _typed = object.zero(from..to.min(from.saturating_add(4096 * PAGE_SIZE)));
    }),
    ("discard", |p| p.object().1.discard(p.pages())),
    ("page out", |p| p.object().1.page_out(p.pages())),
    ("write back", |p| {
        let _typed = p.object().1.write_back(p.pages());
    }),
    ("set a size", |p| {
        let (object, bytes) = (p.object().1, p.offset());
        object.set_size(bytes);
    }),
    ("revoke", |p| p.object().1.revoke()),
    ("write protect", |p| {
        let _proof = p.object().1.write_protect(p.pages());
    }),
    ("marks", |p| {
        let (object, pages) = (p.object().1, p.pages());
        let marks = object.query_range(pages.clone());
        assert!(marks.mapped.max(marks.referenced).max(marks.dirty) <= marks.resident, "{marks:?}");
        let _racing = object.take_referenced(pages);
    }),
    ("look at an object", |p| {
        let ((n, object), page) = (p.object(), p.page());
        let vm = p.world.vms[n / THINGS];
        assert!(object.is_of(vm) && std::ptr::eq(object.vm(), &raw const ****vm));
        assert!(!object.is_of(p.world.vms[1 - n / THINGS]));
        let _racing = (object.size(), object.resident(), object.next_page(page), object.next_hole(page));
        object.check(false).map(drop).unwrap_or_else(|broken| panic!("{broken}"));
    }),
    ("times of stores", |p| {
        let object = p.object().1;
        let at = object.stored();
        object.forget_stores(at);
    }),
    ("failed writes", |p| {
        let object = p.object().1;
        let errors = object.write_errors();
        let cursor = errors.follow();
        if p.flip() {
            errors.raise(PagerError::Failed);
        }
        let _reported = errors.report(&cursor);
    }),
    ("walk", |p| {
        let (object, pages, back) = (p.object().1, p.pages(), p.page());
        let mut range = object.range(pages, SlotFilter::BOTH | SlotFilter::MARKS);
        assert!(std::ptr::eq(range.object(), &*object));
        range.resume_at(back);
        assert!(range.is_done() || range.key() == back);
        inside::pages(&object, p.pages());
    }),
    ("change a quota", |p| {
        let quota = p.quota();
        let limit = p.one_of(&[0, 4, 24, u64::MAX]);
        quota.set_limit(limit);
    }),
    ("fail pagers", |p| super::pagers::fail(p.below(8) as u32)),
];
