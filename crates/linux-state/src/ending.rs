//! The end of the machine: the results are sent to the host, and the power is switched off.

use crate::Linux;
use crate::machine::{End, Machine};
use quire_fs::pack::pack_end;
use quire_fs::{FsError, Vfs};
use quire_heap::{Vec, try_format};
use quire_sync::atomic::Ordering;
use quire_sync::hooks::park;

impl<M: Machine> Linux<M> {
    /// Ends the machine: sends the requested results to the host, and powers off. Only the first caller ends the
    /// machine. Later callers sleep until the power is off.
    pub fn finish(&self, end: End) -> ! {
        if self.ending.swap(true, Ordering::AcqRel) {
            loop {
                park(None);
            }
        }
        if let Some(paths) = self.results.get() {
            self.send_results(paths);
        }
        self.machine.power_off(end)
    }

    /// Packs each of `paths` that exists into an archive for the host. Each member's name is the index of its path.
    fn send_results(&self, paths: &[Vec<u8>]) {
        let vfs = self.files.vfs();
        let mut out = |bytes: &[u8]| self.machine.send_result(bytes);
        for (index, path) in paths.iter().enumerate() {
            if let Err(e) = pack_path(vfs, path, index, &mut out) {
                let path = core::str::from_utf8(path).unwrap_or("a path");
                self.machine.log(format_args!("{path} cannot be sent to the host: {e}"));
            }
        }
        if let Err(e) = pack_end(&mut out) {
            self.machine.log(format_args!("the results have no end: {e}"));
        }
    }
}

fn pack_path<H: quire_fs::Host>(
    vfs: &Vfs<H>,
    path: &[u8],
    index: usize,
    out: &mut dyn FnMut(&[u8]),
) -> Result<(), FsError> {
    let found = vfs.find(&vfs.view(), vfs.root(), path, true)?;
    let name = try_format(format_args!("{index}"))?;
    vfs.pack(&found, &name, out)
}
