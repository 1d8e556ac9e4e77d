//! Makes, changes, lists and removes files and directories beneath the directory
//! it runs in, and prints what it found and which errors it was given.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {:?}", error.kind());
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    trees()?;
    contents()?;
    errors();
    let mut found = BTreeMap::new();
    list(Path::new("files"), &mut found)?;
    for (name, what) in found {
        println!("{name}: {what}");
    }
    fs::remove_dir_all("files/many")?;
    println!("many is there: {}", Path::new("files/many").exists());
    Ok(())
}

/// Directories, many entries, renames, links.
fn trees() -> io::Result<()> {
    fs::create_dir_all("files/a/b/c")?;
    fs::create_dir("files/many")?;
    for n in 0..400 {
        fs::write(format!("files/many/entry with a longer name {n:04}"), n.to_string())?;
    }
    for n in (0..400).step_by(3) {
        fs::remove_file(format!("files/many/entry with a longer name {n:04}"))?;
    }
    fs::rename("files/many/entry with a longer name 0001", "files/a/b/moved")?;
    fs::rename("files/a/b", "files/größe 漢字")?;
    fs::hard_link("files/größe 漢字/moved", "files/a/second name")?;
    fs::copy("files/größe 漢字/moved", "files/a/copy")?;
    OpenOptions::new().append(true).open("files/a/second name")?.write_all(b" and more")?;
    println!("linked: {:?}", fs::read_to_string("files/größe 漢字/moved")?);
    println!("copied: {:?}", fs::read_to_string("files/a/copy")?);

    let mut names: Vec<_> = fs::read_dir("files/many")?
        .map(|entry| entry.map(|entry| entry.file_name().into_string().unwrap_or_default()))
        .collect::<io::Result<_>>()?;
    names.sort();
    println!("{} entries from {:?} to {:?}", names.len(), names[0], names[names.len() - 1]);
    Ok(())
}

/// Reading and writing at places, truncation, buffers, holes.
fn contents() -> io::Result<()> {
    let path = "files/numbers";
    let mut output = BufWriter::new(File::create(path)?);
    for n in 0..50_000_u64 {
        writeln!(output, "{}", n * n % 10_007)?;
    }
    output.into_inner()?.sync_all()?;

    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut sum = 0_u64;
    for line in BufReader::new(&file).lines() {
        sum += line?.parse::<u64>().unwrap_or(1_000_000);
    }
    println!("sum {sum}, {} bytes", file.metadata()?.len());

    file.seek(SeekFrom::Start(1000))?;
    file.write_all(b"<here>")?;
    file.seek(SeekFrom::Current(-8))?;
    let mut around = [0; 10];
    file.read_exact(&mut around)?;
    println!("around {:?} at {}", String::from_utf8_lossy(&around), file.stream_position()?);
    println!("end {}", file.seek(SeekFrom::End(-3))?);
    file.set_len(2000)?;
    println!("read {} after the end", file.read(&mut around)?);
    file.seek(SeekFrom::Start(100_000))?;
    file.write_all(b"!")?;
    file.rewind()?;
    let mut whole = Vec::new();
    file.read_to_end(&mut whole)?;
    println!("{} bytes, {} of them zero", whole.len(), whole.iter().filter(|b| **b == 0).count());
    Ok(())
}

/// What is refused.
fn errors() {
    let kind = |result: io::Result<()>| result.err().map(|error| error.kind());
    println!("missing {:?}", kind(File::open("files/none").map(drop)));
    println!("exists {:?}", kind(File::create_new("files/numbers").map(drop)));
    println!("directory exists {:?}", kind(fs::create_dir("files/a")));
    println!("not empty {}", fs::remove_dir("files/a").is_err());
    println!("no directory {:?}", kind(fs::read_dir("files/numbers").map(drop)));
    println!("through a file {:?}", kind(fs::write("files/numbers/x", "")));
    println!("a directory {:?}", kind(fs::write("files/a", "")));
    println!("remove a directory {:?}", kind(fs::remove_file("files/none")));
    println!("rename nothing {:?}", kind(fs::rename("files/none", "files/other")));
    println!("into itself {:?}", kind(fs::rename("files/a", "files/a/b")));
    println!("link over {:?}", kind(fs::hard_link("files/numbers", "files/a/copy")));
    println!(
        "read only {:?}",
        kind(File::open("files/numbers").and_then(|mut f| f.write_all(b"x")))
    );
    println!(
        "not text {:?}",
        kind(
            fs::write("files/bytes", [0xff, 0xfe])
                .and_then(|()| fs::read_to_string("files/bytes").map(drop))
        )
    );
    println!(
        "seek {:?}",
        kind(
            File::open("files/numbers").and_then(|mut f| f.seek(SeekFrom::End(-200_000)).map(drop))
        )
    );
}

/// Every entry below, with what it is.
fn list(path: &Path, found: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        let what = if kind.is_dir() {
            list(&path, found)?;
            "directory".to_owned()
        } else {
            let bytes = fs::read(&path)?;
            let sum = bytes.iter().fold(1_u32, |sum, byte| sum.wrapping_mul(31) ^ u32::from(*byte));
            assert_eq!(entry.metadata()?.len(), bytes.len() as u64);
            format!("{} bytes, {sum:08x}", bytes.len())
        };
        found.insert(path.display().to_string(), what);
    }
    Ok(())
}
