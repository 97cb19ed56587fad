//! The macros that turn the rows of `table.rs` into code.
//!
//! A table is a macro that passes its rows to another macro. `layers!` makes from them the flags, the variables, a struct of
//! the values that were given, a struct of the values with defaults, and the rows as data. `file!` makes the keys of the
//! file. The compiler refuses a row whose value is never used.

/// Makes the struct of a layer (each value with the place where it was given), the struct of values with defaults applied,
/// and the rows as data.
macro_rules! layers {
    (
        $(#[doc = $about:literal])+
        names $given:ident, $values:ident, $file:ident, $rows:ident, prefix $prefix:literal $(nested $nested:ident: $nested_file:ty)?;
        $($heading:literal {
            $($(#[doc = $doc:literal])+
            $name:ident $(as $key:literal)?: $type:ty = $default:expr, $reload:ident $(, least $least:expr)?;)+
        })+
    ) => {
        $(#[doc = $about])+
        ///
        /// With defaults applied.
        #[derive(Clone, Debug, PartialEq)]
        pub struct $values {
            $($($(#[doc = $doc])+ pub $name: <$type as Value>::Plain,)+)+
        }

        $(#[doc = $about])+
        ///
        /// As one source gives them; `None` if it does not.
        #[derive(Clone, Debug, Default)]
        pub struct $given {
            $($($(#[doc = $doc])+ pub $name: Option<Given<$type>>,)+)+
        }

        #[allow(dead_code, reason = "not every table is listed or compared")]
        impl $values {
            /// The default of each setting.
            pub const DEFAULT: Self = Self { $($($name: $default,)+)+ };

            /// Each setting's name and its value as it would be written.
            pub fn list(&self) -> Vec<(&'static str, String)> {
                vec![$($((stringify!($name), <$type as Value>::text(&self.$name)),)+)+]
            }

            /// The names of the settings in which other values differ.
            pub fn differences(&self, other: &Self) -> Vec<&'static str> {
                let mut names = Vec::new();
                $($(if self.$name != other.$name {
                    names.push(stringify!($name));
                })+)+
                names
            }
        }

        #[allow(dead_code, reason = "not every table has layers")]
        impl $given {
            /// These settings, completed by those of the lower layer. A list replaces the lower layer's list.
            #[must_use]
            pub fn or(self, lower: Self) -> Self {
                Self { $($($name: self.$name.or(lower.$name),)+)+ }
            }

            /// Applies the defaults.
            pub(super) fn values(&self) -> $values {
                let defaults = $values::DEFAULT;
                $values { $($($name: self.$name.clone().map_or(defaults.$name, |given| Value::plain(given.value)),)+)+ }
            }

            /// Where a setting was given.
            pub fn origin(&self, name: &str) -> Option<Origin> {
                match name {
                    $($(stringify!($name) => self.$name.as_ref().map(|given| given.origin),)+)+
                    _ => None,
                }
            }

            /// Checks the least values.
            pub(super) fn checked(self) -> Result<Self, ConfigError> {
                $($($(if let Some(given) = &self.$name {
                    given.at_least($least, stringify!($name))?;
                })?)+)+
                Ok(self)
            }

            /// Reads flags and environment.
            pub(super) fn from_matches(matches: &clap::ArgMatches) -> Result<Self, ConfigError> {
                let typed = Self { $($($name: given(matches, stringify!($name))?,)+)+ };
                typed.checked()
            }
        }

        pub(super) fn $rows() -> Vec<Setting> {
            vec![$($(Setting {
                name: stringify!($name),
                heading: $heading,
                help: help(&[$($doc),+], &<$type as Value>::text(&$values::DEFAULT.$name)),
                key: keyed($prefix, None::<&str>$(.or(Some($key)))?, stringify!($name)),
                default: <$type as Value>::text(&$values::DEFAULT.$name),
                least: None::<String>$(.or(Some(<$type as Quantity>::of($least).to_string())))?,
                form: <$type as Value>::FORM,
                reload: Reload::$reload,
            },)+)+]
        }
    };
}

/// Makes the keys of the file.
macro_rules! file {
    (
        $(#[doc = $about:literal])+
        names $given:ident, $values:ident, $file:ident, $rows:ident, prefix $prefix:literal $(nested $nested:ident: $nested_file:ty)?;
        $($heading:literal {
            $($(#[doc = $doc:literal])+
            $name:ident $(as $key:literal)?: $type:ty = $default:expr, $reload:ident $(, least $least:expr)?;)+
        })+
    ) => {
        /// Keys of the file. Values are kept as text until `$(NAME)` is expanded, then read as flags are.
        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub(super) struct $file {
            $($($(#[serde(rename = $key)])? $name: Option<<$type as Value>::Yaml>,)+)+
            $(pub(super) $nested: $nested_file,)?
        }

        impl $file {
            pub(super) fn given(self, environment: Environment<'_>) -> Result<$given, ConfigError> {
                let key = |given: Option<&str>, name| key($prefix, given, name);
                let given = $given {
                    $($($name: self.$name.map(|yaml| {
                        let key = key(None::<&str>$(.or(Some($key)))?, stringify!($name));
                        let value = <$type as Value>::from_yaml(yaml, &key, environment)?;
                        Ok::<_, ConfigError>(Given { value, origin: Origin::File })
                    }).transpose()?,)+)+
                };
                given.checked()
            }
        }
    };
}

pub(super) use {file, layers};
