//! `getdents64` and `getdents`, which list directories.

use crate::file::stat::type_bits;
use quire_fs::FsError;
use quire_linux_state::{Ctx, Errno, Machine};

/// The layout of a record. Inode number, position of the next record and length of the record begin both layouts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `struct linux_dirent64`: the type precedes the name.
    Wide,
    /// `struct linux_dirent`: the type is the last byte of the record, after the name and its padding.
    Old,
}

/// The size in bytes of the part that begins both layouts.
const HEAD: usize = 18;
/// The most bytes of a name.
const NAME: usize = 255;
/// The size of the largest record in bytes. Both layouts add a type and a terminating zero byte.
const ROOM: usize = (HEAD + NAME + 2).next_multiple_of(8);

impl Layout {
    /// Writes the part of a record after its beginning: the name and the type. The rest is zeroes before.
    #[inline(always)]
    fn finish(self, rest: &mut [u8], name: &[u8], kind: u8) {
        let start = usize::from(self == Layout::Wide);
        rest[start..start + name.len()].copy_from_slice(name);
        let at = if self == Layout::Wide { 0 } else { rest.len() - 1 };
        rest[at] = kind;
    }
}

/// Lists directory `fd` in records at user address `to`, where there are `size` bytes. Returns the bytes of the
/// records.
#[inline(always)] // each call has its own layout
fn list<M: Machine>(ctx: &Ctx<'_, M>, fd: i32, to: u64, size: u32, layout: Layout) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let (user, thread) = (ctx.user(), ctx.thread);
    let (mut done, mut failed) = (0usize, None);
    let mut record = [0u8; ROOM];
    let listed = file.list(&mut |entry| {
        let len = (HEAD + entry.name.len() + 2).next_multiple_of(8);
        if done + len > size as usize {
            failed = Some(Errno::EINVAL);
            return false;
        }
        let Some(record) = record.get_mut(..len) else { return true };
        // The bytes after the name, at most nine. An earlier record may have been longer.
        record[len - 16..].copy_from_slice(&[0; 16]);
        record[..8].copy_from_slice(&entry.number.to_le_bytes());
        record[8..16].copy_from_slice(&entry.next.to_le_bytes());
        record[16..HEAD].copy_from_slice(&(len as u16).to_le_bytes());
        layout.finish(&mut record[HEAD..], entry.name, (type_bits(entry.kind) >> 12) as u8);
        match user.write_bytes(to + done as u64, record) {
            Ok(()) => {
                done += len;
                !thread.killed()
            }
            Err(_) => {
                failed = Some(Errno::EFAULT);
                false
            }
        }
    });
    match (listed, failed) {
        // Entries that were returned are not returned again. If memory was exhausted after some entries, the call
        // succeeds, and the next one fails.
        (Err(e), _) if e != FsError::OutOfMemory || done == 0 => Err(e.into()),
        (_, Some(e)) if done == 0 => Err(e),
        _ => Ok(done),
    }
}

/// `getdents64`
pub fn sys_getdents64<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: u64, size: u32) -> Result<usize, Errno> {
    list(ctx, fd, to, size, Layout::Wide)
}

/// `getdents`
pub fn sys_getdents<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: u64, size: u32) -> Result<usize, Errno> {
    list(ctx, fd, to, size, Layout::Old)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::test_host::script::{Task, run};
    use linux_raw_sys::general::*;
    use quire_linux_state::Errno;

    const ROOM: u64 = 512;

    /// Lists `/tmp/d` with `number`. Returns the names, inode numbers, positions and types.
    fn list(task: &mut Task, number: u32) -> Vec<(String, u64, u64, u8)> {
        let path = task.text("/tmp/d");
        let file = task.call(__NR_open, [path, u64::from(O_RDONLY | O_DIRECTORY), 0]).unwrap();
        let to = task.room(ROOM);
        task.poke(to, &[0xff; ROOM as usize]);
        assert_eq!(task.call(number, [file, to, 23]), Err(Errno::EINVAL), "no room for a record");
        let bytes = task.call(number, [file, to, ROOM]).unwrap();
        assert_eq!(task.call(number, [file, to, ROOM]), Ok(0));
        task.call(__NR_close, [file]).unwrap();
        let (mut at, mut all) = (to, Vec::new());
        while at < to + bytes {
            let len = u64::from(task.get::<u16>(at + 16));
            assert_eq!(len % 8, 0);
            let (name, kind) = if number == __NR_getdents64 { (at + 19, at + 18) } else { (at + 18, at + len - 1) };
            let name = (name..).map(|at| task.get::<u8>(at)).take_while(|byte| *byte != 0).map(char::from).collect();
            all.push((name, task.get(at), task.get(at + 8), task.get(kind)));
            at += len;
        }
        assert_eq!(at, to + bytes);
        all
    }

    #[test]
    fn both_layouts_list_the_same_entries() {
        run(|task| {
            let path = task.text("/tmp/d");
            task.call(__NR_mkdir, [path, 0o755]).unwrap();
            // The records' lengths meet each remainder of their alignment.
            for len in 1..10 {
                task.file(&format!("/tmp/d/{}", "n".repeat(len)), 0o644, b"");
            }
            let path = task.text("/tmp/d/directory");
            task.call(__NR_mkdir, [path, 0o755]).unwrap();
            let old = list(task, __NR_getdents);
            assert_eq!(old, list(task, __NR_getdents64));
            assert_eq!(old.len(), 12);
            let kind = |name: &str| old.iter().find(|entry| entry.0 == name).unwrap().3;
            assert_eq!((kind("."), kind("nnnn"), kind("directory")), (4, 8, 4));
        });
    }
}
