//! Enumerations that files and terminals know by words.

/// Writes and reads the variants of an enumeration as words; `$what` says in errors what the words are.
macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $($type::$variant => $word),+ })
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(word: &str) -> Result<$type, String> {
                match word {
                    $($word => Ok($type::$variant),)+
                    _ => Err(format!("{word:?} is no {}; there are {}", $what, [$($word),+].join(", "))),
                }
            }
        }
    };
}

pub(crate) use words;
