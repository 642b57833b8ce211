//! What a job says, on disk: its beginning and its end, never more than a stated size. A disk that does not take it stops
//! nothing, and neither does a job that never stops talking.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The end of the output that goes into the verdict, in bytes.
pub const TAIL_BYTES_MAX: usize = 2 * 1024;
/// Raw bytes at the end of the output that a verdict's tail is made of.
const RAW_TAIL_BYTES: usize = 8 * 1024;
/// Of an output that is too long so much is kept of its end, in memory until the job ends.
const END_BYTES_MAX: usize = 64 * 1024;
/// Room for the line that says that something is missing.
const NOTICE_BYTES_MAX: u64 = 128;

/// The output of one job.
#[derive(Debug)]
pub struct Output {
    file: Option<File>,
    /// The file takes so many more bytes of the beginning.
    room: u64,
    /// So many of the last bytes go into the file at the end, where there was no room for all.
    end_max: usize,
    /// Bytes that found no room.
    over: u64,
    /// The last bytes, whether they found room or not.
    last: VecDeque<u8>,
}

impl Output {
    /// An empty file at `path` that never gets larger than `bytes_max`.
    pub fn create(path: &Path, bytes_max: u64) -> Output {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).ok();
        let half = usize::try_from(bytes_max.div_euclid(2)).unwrap_or(usize::MAX);
        let end_max = half.min(END_BYTES_MAX);
        let kept = u64::try_from(end_max).unwrap_or(u64::MAX).saturating_add(NOTICE_BYTES_MAX);
        Output { file, room: bytes_max.saturating_sub(kept), end_max, over: 0, last: VecDeque::new() }
    }

    /// What the job said next.
    pub fn take(&mut self, bytes: &[u8]) {
        self.last.extend(bytes);
        let surplus = self.last.len().saturating_sub(END_BYTES_MAX.max(RAW_TAIL_BYTES));
        self.last.drain(..surplus);
        let fits = usize::try_from(self.room).unwrap_or(usize::MAX).min(bytes.len());
        let (head, rest) = bytes.split_at_checked(fits).unwrap_or((bytes, &[]));
        self.write(head);
        self.room = self.room.saturating_sub(u64::try_from(fits).unwrap_or(u64::MAX));
        self.over = self.over.saturating_add(u64::try_from(rest.len()).unwrap_or(u64::MAX));
    }

    /// The last bytes, for the verdict.
    pub fn end(&mut self) -> &[u8] {
        let all: &[u8] = self.last.make_contiguous();
        all.get(all.len().saturating_sub(RAW_TAIL_BYTES)..).unwrap_or(all)
    }

    /// Nothing more comes: where something found no room, the file says so and gets the end.
    pub fn finish(mut self) {
        if self.over == 0 {
            return;
        }
        let end: Vec<u8> = {
            let keep = usize::try_from(self.over).unwrap_or(usize::MAX).min(self.end_max);
            self.last.iter().skip(self.last.len().saturating_sub(keep)).copied().collect()
        };
        let missing = self.over.saturating_sub(u64::try_from(end.len()).unwrap_or(u64::MAX));
        if missing > 0 {
            self.write(
                format!("\n[backstop: {missing} bytes of output were left out here: job.output_max_kib]\n").as_bytes(),
            );
        }
        self.write(&end);
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(file) = &mut self.file {
            let _ = file.write_all(bytes);
        }
    }
}

/// The end of an output file, as much as a verdict's tail is made of.
pub(super) fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let raw = u64::try_from(RAW_TAIL_BYTES).unwrap_or(u64::MAX);
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(raw)))?;
    let mut bytes = Vec::new();
    file.take(raw).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes_max: u64, pieces: &[&[u8]]) -> Vec<u8> {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("output");
        let mut output = Output::create(&path, bytes_max);
        for piece in pieces {
            output.take(piece);
        }
        output.finish();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn what_fits_is_there_byte_by_byte() {
        let all: Vec<u8> = (0..4_000_u32).flat_map(u32::to_le_bytes).collect();
        // Also where the beginning alone has no room for it: nothing of it is missing.
        for bytes_max in [100_000, 24_128] {
            assert!(written(bytes_max, &[all.get(..7).unwrap(), all.get(7..).unwrap()]) == all, "{bytes_max}");
        }
    }

    #[test]
    fn an_output_that_is_too_long_has_its_beginning_its_end_and_says_how_much_is_missing() {
        for bytes_max in [1_024, 10_000, 1_048_576] {
            let line = |n: u32| format!("line {n:08}\n").into_bytes();
            let lines: Vec<Vec<u8>> = (0..200_000).map(line).collect();
            let pieces: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
            let file = written(bytes_max, &pieces);
            let text = String::from_utf8_lossy(&file);
            assert!(u64::try_from(file.len()).unwrap() <= bytes_max, "{} of {bytes_max}", file.len());
            assert!(text.starts_with("line 00000000\nline 00000001\n") && text.ends_with("\nline 00199999\n"));
            let missing: u64 = text.split("[backstop: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
            let notice = text.lines().find(|l| l.starts_with("[backstop: ")).unwrap().len() + 2;
            let total: usize = lines.iter().map(Vec::len).sum();
            assert_eq!(
                u64::try_from(file.len() - notice + usize::try_from(missing).unwrap()).unwrap(),
                u64::try_from(total).unwrap()
            );
        }
    }
}
