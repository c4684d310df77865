//! Signals to all members of a process group.

use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::group::{Broadcast, Group};
use crate::signal::info::SigInfo;
use crate::signal::set::Signal;
use crate::{Linux, Pid};

impl<M: Machine> Group<M> {
    /// Sends `info` to every member that `may` permits. Succeeds if a member took it; otherwise returns the reason.
    pub fn signal(&self, info: Option<SigInfo>, may: impl Fn(&Process<M>) -> bool) -> Result<(), Errno> {
        let (mut taken, mut why) = (false, Errno::ESRCH);
        let _broadcast = info.map(|_| Broadcast::begin(self));
        self.any(|process| {
            let sent = match info {
                _ if !may(process) => Err(Errno::EPERM),
                Some(info) => self.linux.signal_process(process, info),
                None => Ok(()),
            };
            match sent {
                Ok(()) => taken = true,
                Err(error) => why = error,
            }
            false
        });
        if taken { Ok(()) } else { Err(why) }
    }

    /// Sends SIGHUP, then SIGCONT, if the group has *become* orphaned with stopped members, as POSIX requires. `link`
    /// is the group at the other end of the parent link that has just been removed. Only a link into another group of
    /// the same session kept this group from being orphaned.
    pub fn hang_up_if_orphaned(&self, link: &Group<M>) {
        if link.id != self.id && link.session.id == self.session.id && self.is_orphaned() && self.has_stopped_member() {
            let _none_left = self.signal(Some(SigInfo::kernel(Signal::HUP)), |_| true);
            let _none_left = self.signal(Some(SigInfo::kernel(Signal::CONT)), |_| true);
        }
    }
}

impl<M: Machine> Linux<M> {
    /// Sends a signal of the kernel to group `id` (for example the terminal's foreground group). Does nothing if there
    /// is no such group.
    pub fn signal_group(&self, id: Pid, signal: Signal) {
        if let Some(group) = self.ids.group(id) {
            let _no_receiver = group.signal(Some(SigInfo::kernel(signal)), |_| true);
        }
    }
}
