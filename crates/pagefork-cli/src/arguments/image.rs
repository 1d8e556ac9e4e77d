//! Arguments of `pagefork image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pagefork::image::PublicKey;

#[derive(Args)]
#[command(
    after_help = "IMAGE is a name, a hash, or four or more of its first digits. An image without a \
                  name stays as long as a process uses it: `gc` removes it then."
)]
pub(crate) struct ImageArguments {
    /// The directory of images, in place of `~/.local/share/pagefork/images`
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) store: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) action: ImageAction,
}

#[derive(Subcommand)]
pub(crate) enum ImageAction {
    /// List the images and their names
    Ls,
    /// Show what an image is, and which pages it has
    Inspect {
        /// The image
        image: String,
    },
    /// Show which pages of two images differ
    Diff {
        /// The one image
        image: String,
        /// The other one
        other: String,
    },
    /// Make a full image of a delta
    Squash {
        /// The image
        image: String,
        /// A name for the new one; without it, the name of the old one, if it has one
        #[arg(long)]
        name: Option<String>,
    },
    /// Sign an image with the user's key, so that this user and those who trust the key go on with
    /// what runs in it
    Sign {
        /// The image, which no process may use now
        image: String,
    },
    /// Give an image a name
    Name {
        /// The image
        image: String,
        /// The name: letters, digits, `.`, `_` and `-`
        name: String,
    },
    /// Take names away; images without any go at the next `gc`
    Rm {
        /// The names, or images, all of whose names are taken away
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Remove what no name leads to and no process uses
    Gc,
    /// Write images with all that they need into a file, or to standard output
    Push {
        /// The images
        #[arg(required = true)]
        images: Vec<String>,
        /// The file to write; `-` is standard output
        #[arg(short, long, value_name = "FILE", default_value = "-")]
        output: PathBuf,
        /// How hard to compress: 1 to 19
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
        level: i32,
    },
    /// Take in images that `push` wrote, or an image file
    Pull {
        /// The file; `-` is standard input
        file: PathBuf,
        /// A name for the last image in it
        #[arg(long)]
        name: Option<String>,
    },
    /// Read images, all or some, and check every byte
    Verify {
        /// The images; without any, all of them and their code
        images: Vec<String>,
    },
    /// Print the public half of the user's key, or trust that of somebody else
    Key {
        /// From now on, go on with what runs in images that this key has signed
        #[arg(long, value_name = "KEY")]
        trust: Option<PublicKey>,
    },
}
