//! Signals to all members of a process group.

use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::group::{Broadcast, Group};
use crate::signal::info::SigInfo;
use crate::signal::set::Signal;
use crate::{Linux, Pid};

impl<M: Machine> Group<M> {
    /// Sends `info` to every member for which `may` returns true. `info` is `None` for a check only. Returns an error
    /// if no member received the signal.
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

    /// Sends SIGHUP and then SIGCONT, as POSIX requires, if the group has just become orphaned and has stopped members.
    /// `link` is the group of the parent or child whose parent link was just removed. Only a link to another group
    /// with the same session can have kept this group from being orphaned.
    pub fn hang_up_if_orphaned(&self, link: &Group<M>) {
        if link.id != self.id && link.session.id == self.session.id && self.is_orphaned() && self.has_stopped_member() {
            let _none_left = self.signal(Some(SigInfo::kernel(Signal::HUP)), |_| true);
            let _none_left = self.signal(Some(SigInfo::kernel(Signal::CONT)), |_| true);
        }
    }
}

impl<M: Machine> Linux<M> {
    /// Sends a signal of the kernel to group `id`, such as the foreground group of a terminal. Does nothing if there is
    /// no such group.
    pub fn signal_group(&self, id: Pid, signal: Signal) {
        if let Some(group) = self.ids.group(id) {
            let _no_receiver = group.signal(Some(SigInfo::kernel(signal)), |_| true);
        }
    }
}
