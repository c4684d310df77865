//! ELF headers of programs. A header that the parser accepts must be safe to map.

use quire_linux::exec::elf::{HEADER_LEN, Header, Layout};
use quire_linux_state::user::USER_END;
use quire_vm::PAGE_SIZE;

/// Parses the bytes as a file.
pub fn run(data: &[u8]) {
    let Ok(header) = Header::parse(data) else { return };
    assert!(data.len() >= HEADER_LEN && header.segment_count > 0);
    let at = usize::try_from(header.segments_at).ok();
    let there = at.and_then(|at| data.get(at..at.checked_add(header.segments_len())?));
    // If the file is shorter than its segment headers, the rest of the file is parsed.
    let segments = there.or(at.and_then(|at| data.get(at..))).unwrap_or_default();
    let Ok(layout) = Layout::parse(&header, segments) else { return };
    let (start, end) = layout.span();
    assert!(start < end && end <= USER_END.next_multiple_of(PAGE_SIZE));
    assert!(layout.align.is_power_of_two() && layout.headers.is_none_or(|at| at < USER_END));
    assert!(layout.interpreter.is_none_or(|(_, len)| (2..=4096).contains(&len)));
    let mut last = 0;
    for s in &layout.segments {
        assert!(s.address >= last && s.memory_len > 0 && s.file_len <= s.memory_len);
        last = s.address + s.memory_len;
        assert!(s.map_start() <= s.file_map_end() && s.file_map_end() <= s.map_end());
        assert!(start <= s.map_start() && s.map_end() <= end);
        assert!(s.file_len == 0 || s.map_start() % PAGE_SIZE == 0 && s.map_offset() % PAGE_SIZE == 0);
        if let Some((at, len)) = s.tail() {
            assert!(at >= s.map_start() && at + len as u64 == s.file_map_end() && (len as u64) < PAGE_SIZE);
        }
    }
}
