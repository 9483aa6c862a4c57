//! The entry: everything Python knows of one op, as const data and one thunk; `expose!`, which makes it; and the texts made from it
//! (signature, docstring, errors). Knows nothing of CPython's calling convention: that is `call.rs`.
use super::arg::Kind;
use super::call::{Args, Calls, Style};
use super::ret::Ret;
use crate::error::Error;
use crate::tape::{How, Info};
use std::sync::OnceLock;

#[derive(Clone, Copy)]
pub struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub default: Option<&'static str>,
    pub keyword_only: bool,
}
impl Param {
    /// A place in a list that is being filled.
    pub const NONE: Param = Param { name: "", kind: super::arg::TENSOR, default: None, keyword_only: false };
}
/// Where Python sees an op.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Places {
    pub function: bool,
    pub method: bool,
    /// Also as a function of the submodule `_C._<name>`.
    pub room: Option<&'static str>,
    /// As `_C._<name>`.
    pub private: bool,
}
impl Places {
    /// Is it a function somewhere?
    pub const fn anywhere(&self) -> bool {
        self.function || self.private || self.room.is_some()
    }
    /// From the block's `on [..]`: nothing means function and method. Any other word than these names a submodule.
    pub const fn of(words: &[&'static str]) -> Places {
        let mut p = Places { function: words.is_empty(), method: words.is_empty(), room: None, private: false };
        let mut i = 0;
        while i < words.len() {
            match words[i].as_bytes() {
                b"function" => p.function = true,
                b"method" => p.method = true,
                b"private" => p.private = true,
                _ => p.room = Some(words[i]),
            }
            i += 1;
        }
        p
    }
}
pub struct Entry {
    pub name: &'static str,
    pub rust: &'static str,
    pub inplace: Option<&'static str>,
    pub node: &'static str,
    pub doc: &'static str,
    pub params: &'static [Param],
    pub on: Places,
    /// What `op!` knows of it, if it is an op with one output.
    pub info: Option<&'static Info>,
    /// What it returns, in Rust.
    pub returns: &'static str,
    /// The named tuple that it returns.
    pub named: Option<&'static str>,
    /// May it write in place and into `out=`?
    pub takes_how: bool,
    pub call: fn(&Args<'_>, How<'_>) -> Result<Ret, Fail>,
    pub c: Calls,
    pub place: (&'static str, u32),
    /// The next overload: set once, when the module is made.
    pub next: OnceLock<&'static Entry>,
}
pub trait Exposed {
    const ENTRY: &'static Entry;
}
pub struct Listed(pub &'static Entry);
inventory::collect!(Listed);
/// The first overload of each name, in the order of names; set once, when the module is made.
static HEADS: OnceLock<Vec<&'static Entry>> = OnceLock::new();
/// Sorts the entries, links overloads in the order of their blocks in their file, and returns the first of each name.
pub fn link() -> &'static [&'static Entry] {
    HEADS.get_or_init(|| {
        let mut all: Vec<&'static Entry> = inventory::iter::<Listed>().map(|l| l.0).collect();
        all.sort_by_key(|e| (e.name, e.place, e.params.len(), e.rust)); // blocks that one macro made share a place
        for w in all.windows(2).filter(|w| w[0].name == w[1].name) {
            let _ = w[0].next.set(w[1]);
        }
        all.dedup_by_key(|e| e.name);
        all
    })
}
/// The first overload of a Python name.
pub fn named(name: &str) -> Option<&'static Entry> {
    let heads = link();
    heads.binary_search_by_key(&name, |e| e.name).ok().map(|i| heads[i])
}
/// Why a call did not happen, or failed.
pub enum Fail {
    /// The value of parameter `.0` is of another type than it takes.
    Type(usize),
    /// So is element `.1` of the list given for it; `.2` names the element's type.
    Element(usize, usize, String),
    Missing,
    TooMany,
    Keyword(String),
    Twice(usize),
    /// An argument is of a subclass of Tensor that may have a say.
    Special,
    Op(Box<Error>),
}
impl From<pyo3::PyErr> for Fail {
    fn from(e: pyo3::PyErr) -> Self {
        Fail::Op(e.into())
    }
}
impl From<Box<Error>> for Fail {
    fn from(e: Box<Error>) -> Self {
        Fail::Op(e)
    }
}

macro_rules! expose {
    (@input $args:ident $i:expr,) => { $args.get::<$crate::py::arg::TensorArg<false>>($i)? };
    (@input $args:ident $i:expr, number) => { $args.get::<$crate::py::arg::TensorArg<true>>($i)? };
    (@input $args:ident $i:expr, optional) => { $args.get_or::<Option<$crate::py::arg::TensorArg<false>>>($i, || None)? };
    (@lend $x:ident) => { &$x };
    (@lend $x:ident number) => { &$x };
    (@lend $x:ident optional) => { $x.as_deref() };
    (@kind) => { $crate::py::arg::TENSOR };
    (@kind number) => { $crate::py::arg::TENSOR_OR_NUMBER };
    (@kind optional) => { $crate::py::arg::OPTIONAL_TENSOR };
    (@absent) => { None };
    (@absent number) => { None };
    (@absent optional) => { Some("None") };
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $python:ident) => { stringify!($python) };
    (@inplace [$($python:ident)?]) => { None };
    (@inplace [] $inplace:ident) => { Some(stringify!($inplace)) };
    (@inplace [$python:ident] $inplace:ident) => { Some(concat!(stringify!($python), "_")) };
    (@text) => { None };
    (@text $($default:tt)+) => { Some(stringify!($($default)+)) };
    (@there) => { false };
    (@there $how:ident) => { true };
    (@some) => { None };
    (@some $named:literal) => { Some($named) };
    (@info Function) => { KERNEL };
    (@info $node:ident) => { Some(&INFO) };
    (@at [] $($x:ident)*) => {
        #[allow(non_camel_case_types, dead_code, clippy::upper_case_acronyms)]
        enum At { $($x,)* }
    };
    (@at [$($order:ident)+] $($x:ident)*) => { $crate::py::entry::expose! { @at [] $($order)+ } };
    (@get $args:ident, $i:expr) => { $args.get($i)? };
    (@get $args:ident, $i:expr, $default:expr) => { $args.get_or($i, || $default)? };
    ([$($doc:literal),*] $node:ident [$($inplace:ident)?] $name:ident [$($python:ident)?] [$($place:ident),*] [$($how:ident)?] $f:path; [$($input:ident [$($kind:ident)?]),*]
     [$($attr:ident: $ty:ty $(= $default:expr)?),*] [$($kw:ident: $kty:ty $(= $kdefault:expr)?),*] $(named $named:literal)? $(order [$($order:ident),*])?) => {
        $crate::py::entry::expose! { @at [$($($order)*)?] $($input)* $($attr)* $($kw)* }
        static ENTRY: $crate::py::entry::Entry = {
            #[allow(unused_imports)]
            use $crate::py::{arg::FromArg, call::{Args, Calls}, entry::{Entry, Param, Places, py_name}, ret::Ret};
            const COUNT: usize = <[&str]>::len(&[$(stringify!($input),)* $(stringify!($attr),)* $(stringify!($kw),)*]);
            const PARAMS: &[Param] = &{
                #[allow(unused_mut)]
                let mut all = [Param::NONE; COUNT];
                $(all[At::$input as usize] = Param { name: py_name(stringify!($input)), kind: $crate::py::entry::expose!(@kind $($kind)?), default: $crate::py::entry::expose!(@absent $($kind)?), keyword_only: false };)*
                $(all[At::$attr as usize] = Param { name: py_name(stringify!($attr)), kind: <$ty as FromArg>::KIND, default: $crate::py::entry::expose!(@text $($default)?), keyword_only: false };)*
                $(all[At::$kw as usize] = Param { name: py_name(stringify!($kw)), kind: <$kty as FromArg>::KIND, default: $crate::py::entry::expose!(@text $($kdefault)?), keyword_only: true };)*
                all
            };
            const { assert!(PARAMS.len() <= $crate::py::call::MOST, "too many parameters") };
            Entry {
                name: $crate::py::entry::raw($crate::py::entry::expose!(@name $name $($python)?)), rust: stringify!($name),
                inplace: $crate::py::entry::expose!(@inplace [$($python)?] $($inplace)?), node: stringify!($node), doc: concat!("" $(, $doc, "\n")*),
                place: (file!(), line!()), next: std::sync::OnceLock::new(), c: Calls::of::<$node>(), on: Places::of(&[$(stringify!($place)),*]),
                info: $crate::py::entry::expose!(@info $node), named: $crate::py::entry::expose!(@some $($named)?), params: PARAMS,
                returns: RETURNS, takes_how: $crate::py::entry::expose!(@there $($how)?),
                call: |_args: &Args<'_>, _given| {
                    $(let $how = _given;)?
                    $(let $input = $crate::py::entry::expose!(@input _args At::$input as usize, $($kind)?);)*
                    $(let $attr: $ty = $crate::py::entry::expose!(@get _args, At::$attr as usize $(, $default)?);)*
                    $(let $kw: $kty = $crate::py::entry::expose!(@get _args, At::$kw as usize $(, $kdefault)?);)*
                    Ok(Ret::from($f($($how,)? $($crate::py::entry::expose!(@lend $input $($kind)?),)* $($attr,)* $($kw,)*)?))
                },
            }
        };
        impl $crate::py::entry::Exposed for $node { const ENTRY: &'static $crate::py::entry::Entry = &ENTRY; }
        ::inventory::submit! { $crate::py::entry::Listed(&ENTRY) }
    };
}
pub(crate) use expose;
/// `r#where` in Rust is `where` in Python.
pub const fn raw(rust: &'static str) -> &'static str {
    match rust.as_bytes() {
        [b'r', b'#', ..] => rust.split_at(2).1,
        _ => rust,
    }
}
/// Parameters besides: `self_` in Rust is `self` in Python.
pub const fn py_name(rust: &'static str) -> &'static str {
    crate::ops::macros::user_name(raw(rust))
}
/// A default as Python writes it.
pub fn literal(rust: &str) -> &str {
    match rust {
        "true" => "True",
        "false" => "False",
        d if d.ends_with("default()") => "()",
        d => {
            // `Scalar::Int(1)`, `Some(0.5)`, `"mean".to_string()`: what stands inside.
            let d = d.rsplit_once('(').map_or(d, |(head, inner)| if inner.len() > 1 { inner.trim_end_matches(')') } else { head });
            d.trim_end_matches(".to_string").trim_end_matches(".to_owned").trim_end_matches(".into")
        }
    }
}

impl Entry {
    /// Is the first parameter `self`?
    pub fn takes_self(&self) -> bool {
        self.params.first().is_some_and(|p| p.name == "self")
    }
    pub fn is_method(&self) -> bool {
        self.on.method && self.takes_self()
    }
    /// Is this overload among those that a call of this style tries?
    pub fn serves(&self, style: Style) -> bool {
        (!style.in_place() || self.inplace.is_some()) && if style.method() { self.is_method() } else { self.on.anywhere() }
    }
    /// Where Python sees any of the overloads.
    pub fn on_any(&'static self) -> Places {
        let mut on = Places { method: false, ..self.on };
        for e in self.overloads() {
            on.function |= e.on.function;
            on.method |= e.is_method();
            on.private |= e.on.private;
            on.room = on.room.or(e.on.room);
        }
        on
    }
    /// Does the op itself write into `out=`?
    pub fn writes_out(&self) -> bool {
        self.takes_how && !self.info.is_some_and(|i| i.view)
    }
    /// Whatever is no view may be asked to write its result elsewhere.
    pub fn may_have_out(&self) -> bool {
        self.info.is_none_or(|i| !i.view)
    }
    /// The name of the in-place version, of whichever overload has one.
    pub fn overloads_in_place(&self) -> Option<&'static str> {
        self.inplace.or_else(|| self.next.get().and_then(|e| e.overloads_in_place()))
    }
    pub fn overloads(&'static self) -> impl Iterator<Item = &'static Entry> {
        std::iter::successors(Some(self), |e| e.next.get().copied())
    }
    /// The name under which the caller sees a parameter: a free function calls `self` `input`.
    pub fn shown(&self, i: usize, method: bool) -> &'static str {
        if i == 0 && !method && self.takes_self() { "input" } else { self.params[i].name }
    }
    /// Position of the keyword `name`, torch's aliases included.
    pub fn find(&self, name: &str) -> Option<usize> {
        let at = |n: &str| self.params.iter().position(|p| p.name == n);
        at(name).or_else(|| match name {
            "axis" => at("dim"),
            "keepdims" => at("keepdim"),
            "input" | "x" | "a" | "x1" if self.takes_self() => Some(0),
            "self" | "x" | "a" | "x1" => at("input").filter(|i| *i == 0),
            "x2" => at("other"),
            _ => None,
        })
    }
    /// `name($self, other, *, alpha=1)`: what `inspect.signature` and `help` read.
    pub fn signature(&self, method: bool) -> String {
        let mut parts: Vec<String> = if method { vec![] } else { vec!["$module".into(), "/".into()] };
        let mut star = false;
        let mark = |star: &mut bool, parts: &mut Vec<String>| {
            if !std::mem::replace(star, true) {
                parts.push("*".into())
            }
        };
        for (i, p) in self.params.iter().enumerate() {
            if p.keyword_only {
                mark(&mut star, &mut parts);
            }
            if i == 0 && method {
                parts.extend(["$self".into(), "/".into()]);
                continue;
            }
            parts.push(self.shown(i, method).to_owned() + &p.default.map_or(String::new(), |d| format!("={}", literal(d))));
        }
        if !method && self.writes_out() {
            mark(&mut star, &mut parts);
            parts.push("out=None".into());
        }
        format!("({})", parts.join(", "))
    }
    /// The C docstring: the signature line that CPython splits off (only where there is one signature), then the text.
    pub fn docstring(&'static self, name: &str, method: bool) -> String {
        let text: Vec<_> = self
            .overloads()
            .map(|e| format!("{name}{}\n\n{}", e.torch_signature(method), e.doc.lines().map(str::trim).collect::<Vec<_>>().join("\n")))
            .collect();
        if self.next.get().is_none() { format!("{name}{}\n--\n\n{}", self.signature(method), text[0]) } else { text.join("\n\n") }
    }
    /// `(Tensor input, int dim, bool keepdim = False)`: how torch's error messages write it.
    pub fn torch_signature(&self, method: bool) -> String {
        let mut parts = Vec::new();
        for (i, p) in self.params.iter().enumerate().skip((method && self.takes_self()) as usize) {
            if p.keyword_only && !parts.iter().any(|s| s == "*") {
                parts.push("*".into())
            }
            parts.push(format!(
                "{} {}{}",
                p.kind.shown,
                self.shown(i, method),
                p.default.map_or(String::new(), |d| format!(" = {}", literal(d)))
            ));
        }
        if !method && self.writes_out() {
            if !parts.iter().any(|s| s == "*") {
                parts.push("*".into())
            }
            parts.push("Tensor out = None".into());
        }
        format!("({})", parts.join(", "))
    }
    /// `got`: the type name of each positional argument and keyword, as the user gave them.
    pub fn explain(&'static self, name: &str, method: bool, fail: &Fail, positional: usize, got: &[(Option<String>, String)]) -> String {
        if self.next.get().is_some() {
            let list: Vec<_> = self.overloads().map(|e| format!(" * {}\n", e.torch_signature(method))).collect();
            let got: Vec<_> = got.iter().map(|(k, t)| k.as_ref().map_or(t.clone(), |k| format!("{k}={t}"))).collect();
            return format!(
                "{name}() received an invalid combination of arguments - got ({}), but expected one of:\n{}",
                got.join(", "),
                list.concat()
            );
        }
        self.explain_as(name, method, fail, positional, got)
    }
    /// As `explain`, of this overload alone.
    pub fn explain_one(&'static self, name: &str, fail: &Fail, positional: usize, got: &[(Option<String>, String)]) -> String {
        self.explain_as(name, false, fail, positional, got)
    }
    fn explain_as(&'static self, name: &str, method: bool, fail: &Fail, positional: usize, got: &[(Option<String>, String)]) -> String {
        let skip = (method && self.takes_self()) as usize;
        let about = |i: usize| {
            let given = i.checked_sub(skip).and_then(|at| got.get(at).filter(|(k, _)| k.is_none() && at < positional));
            let ty =
                given.or_else(|| got.iter().find(|(k, _)| k.as_ref().is_some_and(|k| self.find(k) == Some(i)))).map_or("?", |(_, t)| t);
            let place = given.map_or(String::new(), |_| format!(" (position {})", i - skip + 1));
            (format!("{name}(): argument '{}'{place} must be {}", self.shown(i, method), self.params[i].kind.shown), ty)
        };
        match fail {
            Fail::Type(i) => {
                let (text, ty) = about(*i);
                format!("{text}, not {ty}")
            }
            Fail::Element(i, at, ty) => format!("{}, but found element of type {ty} at pos {at}", about(*i).0),
            Fail::Missing => {
                let missing: Vec<_> = self
                    .params
                    .iter()
                    .enumerate()
                    .skip(skip + positional)
                    .filter(|(i, p)| p.default.is_none() && !got.iter().any(|(k, _)| k.as_ref().is_some_and(|k| self.find(k) == Some(*i))))
                    .map(|(i, _)| format!("\"{}\"", self.shown(i, method)))
                    .collect();
                format!("{name}() missing {} required positional arguments: {}", missing.len(), missing.join(", "))
            }
            Fail::TooMany => {
                let n = self.params.iter().filter(|p| !p.keyword_only).count() - skip;
                format!(
                    "{name}() takes {n} positional argument{} but {positional} {} given",
                    if n == 1 { "" } else { "s" },
                    if positional == 1 { "was" } else { "were" }
                )
            }
            Fail::Keyword(k) => format!("{name}() got an unexpected keyword argument '{k}'"),
            Fail::Twice(i) => format!("{name}() got multiple values for argument '{}'", self.shown(*i, method)),
            Fail::Special => format!("{name}(): an argument of this subclass of Tensor was refused"),
            Fail::Op(e) => e.to_string(),
        }
    }
}
