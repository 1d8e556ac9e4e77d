//! Writes the man pages and shell completions of the command into a directory, as `man/*.1` and
//! `completions/*`. `cargo xtask man` runs this.

use std::io::Result;
use std::path::Path;

use clap_complete::Shell;

fn main() -> Result<()> {
    let directory = std::env::args_os().nth(1).expect("give the directory to write into");
    let [man, completions] = ["man", "completions"].map(|name| Path::new(&directory).join(name));
    std::fs::create_dir_all(&man)?;
    std::fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(pagefork_cli::grammar(), man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut pagefork_cli::grammar(), "pagefork", &completions)?;
    }
    Ok(())
}
