//! Whether the system is short of memory: then nothing is fetched early.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Looked at no more often than that.
const INTERVAL: Duration = Duration::from_millis(500);

/// Memory is short when tasks wait for it for this part of the time.
const SHARE: f64 = 0.075;

/// What the kernel counts of it. Reading it now and then costs less than having the kernel watch, and
/// a process that ends does not wait for that to be undone.
#[derive(Debug)]
pub(crate) struct MemoryPressure {
    /// `None` where the kernel does not count.
    file: Option<File>,
    looked: Instant,
    /// Microseconds that tasks have waited until then.
    waited: Option<u64>,
}

impl MemoryPressure {
    pub(crate) fn new() -> Self {
        Self {
            file: File::open("/proc/pressure/memory").ok(),
            looked: Instant::now(),
            waited: None,
        }
    }

    /// What finds that memory is short, once.
    #[cfg(test)]
    pub(crate) fn short(path: &std::path::Path) -> Self {
        std::fs::write(path, "some avg10=99.00 total=9000000000\n").unwrap();
        let looked = Instant::now().checked_sub(INTERVAL).unwrap();
        Self { file: Some(File::open(path).unwrap()), looked, waited: Some(0) }
    }

    /// Whether memory was short since the last time, if it was looked.
    pub(crate) fn is_short(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked);
        let Some(file) = self.file.as_ref().filter(|_| passed >= INTERVAL) else { return false };
        let mut text = [0; 256];
        let size = file.read_at(&mut text, 0).unwrap_or(0);
        let waited = std::str::from_utf8(&text[..size]).ok().and_then(total);
        let before = std::mem::replace(&mut self.waited, waited);
        self.looked = now;
        let more = before.zip(waited).map_or(0, |(before, waited)| waited.saturating_sub(before));
        more as f64 > passed.as_micros() as f64 * SHARE
    }
}

/// Microseconds for which some task has waited, from the kernel's text.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read() {
        let text = "some avg10=0.00 avg60=0.12 avg300=0.05 total=123456\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
        assert_eq!(total(text), Some(123456));
        for other in ["", "full total=1", "some avg10=0", "some total=x"] {
            assert_eq!(total(other), None);
        }
    }

    #[test]
    fn memory_is_short_when_tasks_wait_for_it() {
        let path = std::env::temp_dir().join(format!("pagefork-pressure-{}", std::process::id()));
        let write = |total: u64| {
            std::fs::write(&path, format!("some avg10=0.00 total={total}\n")).unwrap();
        };
        write(1000);
        let begun = Instant::now();
        let file = Some(File::open(&path).unwrap());
        let mut pressure = MemoryPressure { file, looked: begun, waited: None };
        assert!(!pressure.is_short(begun + INTERVAL), "there is nothing to compare with");
        write(1000 + 10_000);
        assert!(!pressure.is_short(begun + 2 * INTERVAL), "a fiftieth of the time");
        write(1000 + 110_000);
        assert!(!pressure.is_short(begun + 2 * INTERVAL), "it was looked just before");
        assert!(pressure.is_short(begun + 3 * INTERVAL), "a fifth of the time");
        std::fs::remove_file(path).unwrap();
    }
}
