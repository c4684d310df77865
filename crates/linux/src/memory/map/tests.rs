use crate::memory::map::*;
use crate::test_host::script::{Task, run};
use linux_raw_sys::general::*;
use proptest::prelude::*;
use quire_linux_state::signal::Signal;

const RW: u32 = PROT_READ | PROT_WRITE;
const MINE: u32 = PRIVATE | ANONYMOUS;
/// The descriptor argument of an anonymous mapping.
const NONE: u64 = u32::MAX as u64;
const PAGE: u64 = PAGE_SIZE;
/// An address at which nothing is mapped.
const AT: u64 = 0x1000_0000;

/// Maps anonymous memory.
fn mmap(task: &mut Task, at: u64, len: u64, flags: u32) -> Result<u64, Errno> {
    task.call(__NR_mmap, [at, len, RW.into(), flags.into(), NONE, 0])
}

/// Maps one page of a file.
fn mmap_file(task: &mut Task, prot: u32, flags: u32, file: u64, offset: u64) -> Result<u64, Errno> {
    task.call(__NR_mmap, [0, PAGE, prot.into(), flags.into(), file, offset])
}

/// Opens a file of three pages with `flags`. The bytes of each page are the page's number, from 1.
fn three_pages(task: &mut Task, flags: u32) -> u64 {
    let bytes: Vec<u8> = (0..3 * PAGE).map(|at| (at / PAGE) as u8 + 1).collect();
    task.file("/tmp/pages", 0o600, &bytes);
    let path = task.text("/tmp/pages");
    task.call(__NR_open, [path, flags.into(), 0]).unwrap()
}

#[test]
fn a_fixed_mapping_replaces_and_the_other_kind_does_not() {
    run(|task| {
        assert_eq!(mmap(task, AT, 3 * PAGE, MINE | FIXED), Ok(AT));
        task.set(AT, 7u64);
        task.set(AT + PAGE, 8u64);
        let again = mmap(task, AT + PAGE, PAGE, MINE | FIXED_NOREPLACE);
        assert_eq!(again, Err(Errno::EEXIST));
        assert_eq!(task.get::<u64>(AT + PAGE), 8, "a refused call changes nothing");
        assert_eq!(mmap(task, AT + PAGE, PAGE, MINE | FIXED), Ok(AT + PAGE));
        assert_eq!((task.get::<u64>(AT), task.get::<u64>(AT + PAGE)), (7, 0));
        task.call(__NR_munmap, [AT, 3 * PAGE]).unwrap();
        assert_eq!(task.peek::<u64>(AT), None);
    });
}

#[test]
fn a_hint_is_rounded_down_and_used_where_it_is_free() {
    run(|task| {
        assert_eq!(mmap(task, AT + 5, PAGE, MINE), Ok(AT));
        task.set(AT, 7u64);
        let other = mmap(task, AT, PAGE, MINE).unwrap();
        assert_ne!(other, AT);
        assert_eq!((task.get::<u64>(AT), task.get::<u64>(other)), (7, 0));
        let far = mmap(task, USER_END, PAGE, MINE).unwrap();
        assert!(far < USER_END, "a hint beyond the end is no error");
        let low = mmap(task, 0, PAGE, MINE | MAP_32BIT).unwrap();
        assert!((LOW.0..LOW.1).contains(&low), "{low:#x}");
    });
}

#[test]
fn bad_arguments_are_refused_and_map_nothing() {
    run(|task| {
        let file = three_pages(task, O_RDWR);
        let before = task.mappings();
        let mut refused = |at: u64, len: u64, flags: u32, fd: u64, offset: u64, why: Errno| {
            let result = task.call(__NR_mmap, [at, len, RW.into(), flags.into(), fd, offset]);
            assert_eq!(result, Err(why), "{at:#x} {len:#x} {flags:#x} {fd:#x} {offset:#x}");
        };
        use Errno as E;
        refused(0, 0, MINE, NONE, 0, E::EINVAL);
        refused(0, 0, PRIVATE, 77, 0, E::EBADF);
        refused(0, 0, PRIVATE, file, 0, E::EINVAL);
        refused(0, PAGE, PRIVATE, 77, 0, E::EBADF);
        refused(0, PAGE, MINE, NONE, 1, E::EINVAL);
        refused(0, PAGE, ANONYMOUS, NONE, 0, E::EINVAL);
        refused(0, PAGE, SHARED_VALIDATE | ANONYMOUS, NONE, 0, E::EINVAL);
        refused(0, PAGE, SHARED_VALIDATE | 1 << 30, file, 0, E::EOPNOTSUPP);
        refused(0, PAGE, SHARED_VALIDATE | SYNC, file, 0, E::EOPNOTSUPP);
        refused(0, PAGE, MINE | HUGETLB, NONE, 0, E::ENOMEM);
        refused(0, PAGE, SHARED | ANONYMOUS | GROWSDOWN, NONE, 0, E::EINVAL);
        refused(0, PAGE, PRIVATE | GROWSDOWN, file, 0, E::EINVAL);
        // Lengths and offsets at the limits of their valid ranges.
        refused(0, u64::MAX, MINE, NONE, 0, E::ENOMEM);
        refused(0, USER_END + 1, MINE, NONE, 0, E::ENOMEM);
        refused(0, USER_END, MINE, NONE, 0, E::ENOMEM);
        refused(0, PAGE, PRIVATE, file, (1 << 63) - PAGE, E::EOVERFLOW);
        refused(0, PAGE, PRIVATE, file, !(PAGE - 1), E::EOVERFLOW);
        // A fixed address that is not aligned, and fixed addresses at the end of user space.
        for fixed in [FIXED, FIXED_NOREPLACE] {
            refused(AT + 1, PAGE, MINE | fixed, NONE, 0, E::EINVAL);
            refused(USER_END, PAGE, MINE | fixed, NONE, 0, E::ENOMEM);
            refused(USER_END - PAGE, 2 * PAGE, MINE | fixed, NONE, 0, E::ENOMEM);
            refused(!(PAGE - 1), 2 * PAGE, MINE | fixed, NONE, 0, E::ENOMEM);
        }
        let after = task.mappings();
        assert_eq!(after, before);
    });
}

#[test]
fn a_shared_mapping_is_the_file_and_a_private_one_is_not() {
    run(|task| {
        let file = three_pages(task, O_RDWR);
        let shared = mmap_file(task, RW, SHARED, file, PAGE).unwrap();
        let private = mmap_file(task, RW, PRIVATE, file, PAGE).unwrap();
        assert_eq!((task.get::<u8>(shared), task.get::<u8>(private)), (2, 2), "the offset is in bytes");
        task.set(private, 9u8);
        task.set(shared + 1, 8u8);
        let into = task.room(2);
        task.call(__NR_pread64, [file, into, 2, PAGE]).unwrap();
        assert_eq!(task.get::<[u8; 2]>(into), [2, 8]);
        assert_eq!(task.get::<[u8; 2]>(private), [9, 2], "its page was copied by the first store");
        task.call(__NR_close, [file]).unwrap();
        assert_eq!(task.get::<u8>(shared + 1), 8, "a mapping keeps the file");
    });
}

#[test]
fn the_rights_of_a_file_limit_its_mappings() {
    run(|task| {
        let read = three_pages(task, O_RDONLY);
        assert_eq!(mmap_file(task, RW, SHARED, read, 0), Err(Errno::EACCES));
        let at = mmap_file(task, PROT_READ, SHARED, read, 0).unwrap();
        assert_eq!(task.call(__NR_mprotect, [at, PAGE, RW.into()]), Err(Errno::EACCES));
        let private = mmap_file(task, RW, PRIVATE, read, 0).unwrap();
        task.set(private, 1u8);
        let path = task.text("/tmp/pages");
        let write = task.call(__NR_open, [path, O_WRONLY.into(), 0]).unwrap();
        assert_eq!(mmap_file(task, PROT_READ, SHARED, write, 0), Err(Errno::EACCES), "a mapping can always be read");
        let ends = task.room(8);
        task.call(__NR_pipe, [ends]).unwrap();
        let end = task.get::<u32>(ends).into();
        assert_eq!(mmap_file(task, PROT_READ, SHARED, end, 0), Err(Errno::ENODEV));
    });
}

#[test]
fn an_access_behind_the_end_of_a_file_is_a_bus_error() {
    run(|task| {
        let child = task.fork(|task| {
            let file = three_pages(task, O_RDWR);
            let at = mmap_file(task, RW, SHARED, file, 3 * PAGE).unwrap();
            task.touch(at, false);
        });
        assert_eq!(task.status(child.unwrap()), u32::from(Signal::BUS.number()));
    });
}

#[test]
fn the_limit_of_memory_refuses_a_mapping_and_no_smaller_one() {
    run(|task| {
        let child = task.fork(|task| {
            let limit = task.put([8 * PAGE * 1024, u64::MAX]);
            task.call(__NR_setrlimit, [RLIMIT_AS.into(), limit]).unwrap();
            assert_eq!(mmap(task, 0, 8 * PAGE * 1024, MINE), Err(Errno::ENOMEM));
            assert_eq!(mmap(task, AT, 16 * PAGE, MINE | FIXED), Ok(AT));
            for pages in [1024, 64, 1] {
                while mmap(task, 0, pages * PAGE, MINE).is_ok() {}
            }
            // For a mapping that replaces another one, only the additional memory counts.
            assert_eq!(mmap(task, AT, 16 * PAGE, MINE | FIXED), Ok(AT));
            assert_eq!(mmap(task, AT, 17 * PAGE, MINE | FIXED), Err(Errno::ENOMEM));
            task.call(__NR_munmap, [AT, PAGE]).unwrap();
            mmap(task, 0, PAGE, MINE).unwrap();
        });
        assert_eq!(task.status(child.unwrap()), 0);
    });
}

#[test]
fn the_number_of_mappings_is_limited() {
    run(|task| {
        let linux = task.machine.linux();
        super::set_max_map_count(linux, task.mappings() + 1);
        // The mappings are not adjacent, so that they do not merge.
        assert_eq!(mmap(task, AT, PAGE, MINE | FIXED), Ok(AT));
        assert_eq!(mmap(task, AT + 2 * PAGE, PAGE, MINE | FIXED), Err(Errno::ENOMEM));
        assert_eq!(task.call(__NR_munmap, [AT, PAGE]), Ok(0), "the end of a mapping needs no room");
        assert_eq!(mmap(task, AT + 2 * PAGE, PAGE, MINE | FIXED), Ok(AT + 2 * PAGE));
    });
}

#[test]
fn a_fork_shares_shared_memory_and_copies_the_rest() {
    run(|task| {
        let shared = mmap(task, 0, PAGE, SHARED | ANONYMOUS).unwrap();
        let private = mmap(task, 0, PAGE, MINE).unwrap();
        task.set(private, 1u64);
        let child = task.fork(move |task| {
            assert_eq!(task.get::<u64>(private), 1);
            task.set(private, 2u64);
            task.set(shared, 2u64);
        });
        assert_eq!(task.status(child.unwrap()), 0);
        assert_eq!((task.get::<u64>(private), task.get::<u64>(shared)), (1, 2));
    });
}

#[test]
fn an_unmapped_middle_leaves_both_ends() {
    run(|task| {
        assert_eq!(mmap(task, AT, 3 * PAGE, MINE | FIXED), Ok(AT));
        (0..3).for_each(|page| task.set(AT + page * PAGE, page));
        assert_eq!(task.call(__NR_munmap, [AT + 1, PAGE]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_munmap, [AT + PAGE, 0]), Err(Errno::EINVAL));
        assert_eq!(task.call(__NR_munmap, [AT + PAGE, 1]), Ok(0), "a length is rounded up");
        let seen = [0, 1, 2].map(|page| task.peek::<u64>(AT + page * PAGE));
        assert_eq!(seen, [Some(0), None, Some(2)]);
        assert_eq!(task.call(__NR_munmap, [AT + PAGE, PAGE]), Ok(0), "nothing is there, and that is no error");
    });
}

#[test]
fn a_protection_is_the_requested_one() {
    assert_eq!(prot_of(0), Prot::empty());
    assert_eq!(prot_of(raw::PROT_WRITE), Prot::WRITE);
    assert_eq!(prot_of(raw::PROT_EXEC), Prot::EXEC);
}

proptest! {
    #[test]
    fn ranges_are_whole_pages_of_user_space(address in any::<u64>(), len in any::<u64>()) {
        if let Ok(r) = range(address & !0xfff, len) {
            prop_assert!(r.start < r.end && r.end <= USER_END && r.end % PAGE_SIZE == 0 && r.len() >= len);
        }
        prop_assert!(address % PAGE_SIZE == 0 || range(address, len).is_err());
    }

    #[test]
    fn fixed_addresses_are_aligned(address in any::<u64>(), noreplace in any::<bool>()) {
        let flags = if noreplace { FIXED_NOREPLACE } else { FIXED };
        match placement(address, flags, 65_536) {
            Ok(Placement::Fixed(at) | Placement::FixedNoReplace(at)) => {
                prop_assert!(at == address && at % PAGE_SIZE == 0);
            }
            Ok(_) => prop_assert!(false),
            Err(_) => prop_assert!(!address.is_multiple_of(PAGE_SIZE)),
        }
    }
}

#[test]
fn an_invalid_descriptor_comes_before_other_invalid_arguments() {
    run(|task| {
        let file = three_pages(task, O_RDONLY);
        for (flags, len, offset) in [(0, PAGE, 0), (PRIVATE | FIXED, PAGE, 0), (PRIVATE, 0, 0)] {
            let call = |task: &mut Task, file: u64| {
                task.call(__NR_mmap, [5, len, PROT_READ.into(), flags.into(), file, offset])
            };
            assert_eq!(call(task, NONE), Err(Errno::EBADF), "{flags:#x} {len}");
            assert_eq!(call(task, file), Err(Errno::EINVAL), "{flags:#x} {len}");
        }
        assert_eq!(mmap(task, 0, PAGE, ANONYMOUS), Err(Errno::EINVAL), "no type, and no file");
    });
}

#[test]
fn advice_for_the_first_pages_finds_nothing_mapped() {
    run(|task| {
        let known = [
            MADV_NORMAL,
            MADV_RANDOM,
            MADV_SEQUENTIAL,
            MADV_WILLNEED,
            MADV_DONTNEED,
            MADV_FREE,
            MADV_REMOVE,
            MADV_DONTFORK,
            MADV_DOFORK,
            MADV_HUGEPAGE,
            MADV_NOHUGEPAGE,
            MADV_DONTDUMP,
            MADV_DODUMP,
            MADV_COLD,
            MADV_PAGEOUT,
            MADV_POPULATE_READ,
            MADV_POPULATE_WRITE,
            MADV_WIPEONFORK,
            MADV_KEEPONFORK,
            MADV_DONTNEED_LOCKED,
        ];
        for advice in known {
            for at in [0, PAGE] {
                let call = task.call(__NR_madvise, [at, PAGE, advice.into()]);
                assert_eq!(call, Err(Errno::ENOMEM), "{advice} at {at:#x}");
            }
            assert_eq!(task.call(__NR_madvise, [0, 0, advice.into()]), Ok(0), "{advice}");
        }
    });
}

/// The bytes of `mincore` for the pages from `at` on.
fn residence<const N: usize>(task: &mut Task, at: u64) -> [u8; N]
where
    [u8; N]: quire_linux_state::base::plain::Plain,
{
    let vector = task.room(N as u64);
    task.call(__NR_mincore, [at, N as u64 * PAGE, vector]).unwrap();
    task.get::<[u8; N]>(vector)
}

#[test]
fn residence_of_a_file_is_shown_only_to_its_owner_and_its_writers() {
    run(|task| {
        task.file("/tmp/sparse", 0o600, b"");
        task.file("/tmp/open", 0o600, b"");
        let open = |task: &mut Task, path: &str, flags: u32| {
            let path = task.text(path);
            task.call(__NR_open, [path, flags.into(), 0]).unwrap()
        };
        let shown = move |task: &mut Task, path: &str| {
            let file = open(task, path, O_RDONLY);
            let at = task.call(__NR_mmap, [0, 4 * PAGE, PROT_READ.into(), SHARED.into(), file, 0]).unwrap();
            residence::<4>(task, at)
        };
        for path in ["/tmp/sparse", "/tmp/open"] {
            let file = open(task, path, O_RDWR);
            task.call(__NR_ftruncate, [file, 4 * PAGE]).unwrap();
            task.call(__NR_fchmod, [file, if path == "/tmp/open" { 0o666 } else { 0o644 }]).unwrap();
            let byte = task.bytes(b"x");
            task.call(__NR_pwrite64, [file, byte, 1, PAGE]).unwrap();
            assert_eq!(shown(task, path), [0, 1, 0, 0]);
        }
        let other = task.fork(move |task| {
            task.call(__NR_setuid, [65534]).unwrap();
            assert_eq!(shown(task, "/tmp/sparse"), [1; 4]);
            assert_eq!(shown(task, "/tmp/open"), [0, 1, 0, 0]);
            let own = mmap(task, 0, 4 * PAGE, MINE).unwrap();
            task.set(own + 2 * PAGE, 1u8);
            assert_eq!(residence::<4>(task, own), [0, 0, 1, 0]);
            task.exit(0)
        });
        assert_eq!(task.status(other.unwrap()), 0);
    });
}

#[test]
fn only_a_privileged_program_maps_the_lowest_addresses() {
    const LOWEST: u64 = 65_536;
    run(|task| {
        assert_eq!(mmap(task, 0, PAGE, MINE | FIXED), Ok(0));
        task.set(8, 7u64);
        assert_eq!(task.get::<u64>(8), 7);
        assert_eq!(task.call(__NR_mprotect, [0, PAGE, PROT_READ.into()]), Ok(0));
        assert_eq!(task.call(__NR_munmap, [0, PAGE]), Ok(0));
        let own = mmap(task, 0, PAGE, MINE).unwrap();
        assert!(own >= LOWEST, "no wish is no wish for page 0");
        let moved = [own, PAGE, PAGE, (MREMAP_MAYMOVE | MREMAP_FIXED).into(), PAGE];
        assert_eq!(task.call(__NR_mremap, moved), Ok(PAGE));
        task.call(__NR_munmap, [PAGE, PAGE]).unwrap();
        let segment = task.call(__NR_shmget, [0, PAGE, 0o1666]).unwrap();
        let other = task.fork(move |task| {
            task.call(__NR_setuid, [65534]).unwrap();
            for at in [0, PAGE, LOWEST - PAGE] {
                for how in [FIXED, FIXED_NOREPLACE] {
                    assert_eq!(mmap(task, at, PAGE, MINE | how), Err(Errno::EPERM));
                }
                let own = mmap(task, 0, PAGE, MINE).unwrap();
                let moved = [own, PAGE, PAGE, (MREMAP_MAYMOVE | MREMAP_FIXED).into(), at];
                assert_eq!(task.call(__NR_mremap, moved), Err(Errno::EPERM));
                if at != 0 {
                    assert_eq!(task.call(__NR_shmat, [segment, at, 0]), Err(Errno::EPERM));
                }
            }
            assert_eq!(mmap(task, LOWEST, PAGE, MINE | FIXED), Ok(LOWEST));
            task.call(__NR_munmap, [LOWEST, PAGE]).unwrap();
            // A wish is raised to the lowest address.
            assert_eq!(mmap(task, PAGE, PAGE, MINE), Ok(LOWEST));
            task.exit(0)
        });
        assert_eq!(task.status(other.unwrap()), 0);
    });
}

#[test]
fn a_range_larger_than_all_memory_does_not_become_writable() {
    run(|task| {
        let len: u64 = 1 << 40;
        let map = |task: &mut Task, prot: u32, flags: u32, file: u64| {
            task.call(__NR_mmap, [0, len, prot.into(), flags.into(), file, 0])
        };
        assert_eq!(map(task, RW, MINE, NONE), Err(Errno::ENOMEM));
        let reserved = map(task, PROT_NONE, MINE, NONE).unwrap();
        let writable = |task: &mut Task, at: u64, len: u64| task.call(__NR_mprotect, [at, len, RW.into()]);
        assert_eq!(writable(task, reserved, len), Err(Errno::ENOMEM));
        assert_eq!(writable(task, reserved, 16 * PAGE), Ok(0));
        let unreserved = map(task, PROT_NONE, MINE | NORESERVE, NONE).unwrap();
        assert_eq!(writable(task, unreserved, len), Ok(0));
        // A file: each page may be copied.
        let file = three_pages(task, O_RDWR);
        assert_eq!(map(task, RW, PRIVATE, file), Err(Errno::ENOMEM));
        assert!(map(task, RW, PRIVATE | NORESERVE, file).is_ok());
        let shown = map(task, PROT_READ, PRIVATE, file).unwrap();
        assert_eq!(writable(task, shown, len), Err(Errno::ENOMEM));
        assert_eq!(writable(task, shown, PAGE), Ok(0));
        let shared = map(task, PROT_READ, SHARED, file).unwrap();
        assert_eq!(writable(task, shared, len), Ok(0));
        // A mapping grows by what its stores may take.
        let grow = |task: &mut Task, at: u64| task.call(__NR_mremap, [at, PAGE, len, MREMAP_MAYMOVE.into()]);
        let small = mmap(task, 0, PAGE, MINE).unwrap();
        assert_eq!(grow(task, small), Err(Errno::ENOMEM));
        let read = task.call(__NR_mmap, [0, PAGE, PROT_READ.into(), MINE.into(), NONE, 0]).unwrap();
        assert!(grow(task, read).is_ok());
    });
}

#[test]
fn the_kernels_pages_do_not_grow_and_a_stored_into_image_is_the_programs_own() {
    run(|task| {
        let begin = |task: &mut Task| {
            let places = task.machine.linux().current().process.memory().unwrap();
            let (mut clocks, mut image) = (0, 0);
            places.mappings(0, &mut |entry| {
                match entry.tag() {
                    quire_vm::map::Tag::Vvar => clocks = entry.range.start,
                    quire_vm::map::Tag::Vdso => image = entry.range.start,
                    _ => {}
                }
                true
            });
            (clocks, image)
        };
        let (clocks, image) = begin(task);
        assert!(clocks != 0 && image == clocks + PAGE);
        for at in [clocks, image] {
            for how in [0, MREMAP_MAYMOVE] {
                assert_eq!(task.call(__NR_mremap, [at, PAGE, 16 * PAGE, how.into()]), Err(Errno::EFAULT));
            }
            let kept = [at, PAGE, PAGE, (MREMAP_MAYMOVE | MREMAP_DONTUNMAP).into(), 0];
            assert_eq!(task.call(__NR_mremap, kept), Err(Errno::EINVAL));
        }
        assert_eq!(task.call(__NR_mprotect, [clocks, PAGE, RW.into()]), Err(Errno::EACCES));
        assert_eq!(task.get::<u32>(image), 0x464c_457f);
        let child = task.fork(move |task| {
            assert_eq!(task.call(__NR_mprotect, [image, PAGE, RW.into()]), Ok(0));
            task.set(image, 7u32);
            assert_eq!(task.get::<u32>(image), 7);
            // A mapping that only moves may.
            let moved = [image, PAGE, PAGE, (MREMAP_MAYMOVE | MREMAP_FIXED).into(), AT];
            assert_eq!(task.call(__NR_mremap, moved), Ok(AT));
            assert_eq!(task.get::<u32>(AT), 7);
            task.exit(0)
        });
        assert_eq!(task.status(child.unwrap()), 0);
        assert_eq!(task.get::<u32>(image), 0x464c_457f, "the child's store is not seen");
    });
}
