//! What those programs have for a host.

/// What a program of the measured ones is to its host: arguments, input, output.
/// A WASI with nothing in it but these; both engines run it, so that engines are
/// compared and not their hosts.
pub(crate) struct Process {
    args: Vec<String>,
    input: Vec<u8>,
    /// How much of the input has been read.
    read: usize,
    clock: u64,
    /// Whether it ends where it reads.
    pub(crate) ends_at_read: bool,
    /// What it wrote to standard output.
    pub(crate) output: Vec<u8>,
    /// What it wrote to standard error.
    pub(crate) errors: Vec<u8>,
}

/// What a call of the program's host leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The call returns this error number.
    Errno(u16),
    /// The program ends.
    Exit,
}

const SUCCESS: Answer = Answer::Errno(0);
const BAD_DESCRIPTOR: Answer = Answer::Errno(8);
const BAD_ADDRESS: Answer = Answer::Errno(21);

const CHARACTER_DEVICE: u8 = 2;

impl Process {
    pub(crate) fn new(args: Vec<String>, input: Vec<u8>) -> Self {
        let (output, errors) = (Vec::new(), Vec::new());
        Self { args, input, read: 0, clock: 0, ends_at_read: false, output, errors }
    }

    /// Calls the function of preview 1 with this name. What needs a file system
    /// finds none.
    pub(crate) fn call(&mut self, name: &str, args: &[u64], memory: &mut [u8]) -> Answer {
        self.try_call(name, args, &mut Bytes(memory)).unwrap_or(BAD_ADDRESS)
    }

    fn try_call(&mut self, name: &str, args: &[u64], memory: &mut Bytes<'_>) -> Option<Answer> {
        let standard = args.first().is_some_and(|descriptor| *descriptor < 3);
        match name {
            "proc_exit" => return Some(Answer::Exit),
            "fd_read" if self.ends_at_read => return Some(Answer::Exit),
            "args_sizes_get" => {
                memory.put(args[0], &(self.args.len() as u32).to_le_bytes())?;
                let bytes: usize = self.args.iter().map(|arg| arg.len() + 1).sum();
                memory.put(args[1], &(bytes as u32).to_le_bytes())?;
            }
            "args_get" => {
                let (mut pointer, mut at) = (args[0], args[1]);
                for arg in &self.args {
                    memory.put(pointer, &(at as u32).to_le_bytes())?;
                    memory.put(at, &[arg.as_bytes(), b"\0"].concat())?;
                    pointer += 4;
                    at += arg.len() as u64 + 1;
                }
            }
            "environ_sizes_get" => {
                memory.put(args[0], &[0; 4])?;
                memory.put(args[1], &[0; 4])?;
            }
            "environ_get" | "sched_yield" => {}
            "clock_time_get" => {
                // Time that does not depend on the machine.
                self.clock += 1_000_000;
                memory.put(args[2], &self.clock.to_le_bytes())?;
            }
            "clock_res_get" => memory.put(args[1], &1u64.to_le_bytes())?,
            "random_get" => memory.get_mut(args[0], args[1])?.fill(7),
            "fd_fdstat_get" if standard => {
                let mut stat = [0; 24];
                stat[0] = CHARACTER_DEVICE;
                stat[8..16].fill(0xff);
                memory.put(args[1], &stat)?;
            }
            "fd_filestat_get" if standard => {
                let mut stat = [0; 64];
                stat[16] = CHARACTER_DEVICE;
                memory.put(args[1], &stat)?;
            }
            "fd_read" if args[0] == 0 => {
                let mut count = 0;
                for (address, length) in memory.vectors(args[1], args[2])? {
                    let rest = &self.input[self.read..];
                    let length = rest.len().min(length as usize);
                    memory.put(address, &rest[..length])?;
                    self.read += length;
                    count += length as u32;
                }
                memory.put(args[3], &count.to_le_bytes())?;
            }
            "fd_write" if args[0] == 1 || args[0] == 2 => {
                let mut count = 0;
                for (address, length) in memory.vectors(args[1], args[2])? {
                    let bytes = memory.get_mut(address, length)?;
                    let to = if args[0] == 1 { &mut self.output } else { &mut self.errors };
                    to.extend_from_slice(bytes);
                    count += length as u32;
                }
                memory.put(args[3], &count.to_le_bytes())?;
            }
            _ => return Some(BAD_DESCRIPTOR),
        }
        Some(SUCCESS)
    }
}

/// A guest's memory; `None` is an access beyond its end.
struct Bytes<'a>(&'a mut [u8]);

impl Bytes<'_> {
    fn get_mut(&mut self, address: u64, length: u64) -> Option<&mut [u8]> {
        self.0.get_mut(address as usize..)?.get_mut(..length as usize)
    }

    fn put(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        self.get_mut(address, bytes.len() as u64)?.copy_from_slice(bytes);
        Some(())
    }

    /// A list of `count` places: address and length of each.
    fn vectors(&mut self, address: u64, count: u64) -> Option<Vec<(u64, u64)>> {
        let list = self.get_mut(address, 8 * count)?;
        let word =
            |bytes: &[u8]| u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        Some(list.chunks_exact(8).map(|entry| (word(&entry[..4]), word(&entry[4..]))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_read_and_output_kept() {
        let mut process = Process::new(vec![], b"abc".to_vec());
        let mut memory = [0; 64];
        memory[..8].copy_from_slice(&[32, 0, 0, 0, 2, 0, 0, 0]);
        let args = |descriptor| [descriptor, 0, 1, 16];
        assert_eq!(process.call("fd_read", &args(0), &mut memory), SUCCESS);
        assert_eq!((&memory[32..34], memory[16]), (&b"ab"[..], 2));
        assert_eq!(process.call("fd_write", &args(1), &mut memory), SUCCESS);
        assert_eq!(process.output, b"ab");
        assert_eq!(process.call("fd_write", &args(3), &mut memory), BAD_DESCRIPTOR);
        memory[3] = 255;
        assert_eq!(process.call("fd_write", &args(1), &mut memory), BAD_ADDRESS);
    }
}
