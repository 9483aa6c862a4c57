//! `op!`, `op_many!` and `function!`: what one block becomes (DESIGN 2). Without the `python` feature no entry exists.
//!
//! Inputs: `x` is a tensor; `x | number` also takes a Python number; `x | optional` may be absent (`Option<&Tensor>`). The first input of
//! an op with a method is `self_`. After `;` come plain attributes with Rust defaults, after `; *,` keyword-only ones.
//! Clauses, in this order, each optional but `forward`:
//!   `schema "mul.Tensor";`      torch's schema name (default: the op's name), as dispatch modes and `torch.ops.aten` show it. Further
//!                               names, after `;`, hold for some calls: `eq.Tensor; eq.Scalar for numbers` (an input is a Python
//!                               number), `sum.dim_IntList; sum without dim keepdim` (these have their defaults)
//!   `overload max;`             the Python name, shared by several blocks that are tried in their order
//!   `inplace mul_;`             derived in-place version
//!   `on [function];`            where Python sees it: `function`, `method`, `nn` (only in `_C._nn`); default function and method
//!   `order [self_, dim, index];`  the parameters as Python has them, where that is not inputs first
//!   `view;`                     the output is a view of the first input
//!   `state [running_mean];`     inputs that are state: read, never differentiated
//!   `notes { self_sym_strides: Dims = expr };`  what backward must know of the inputs besides slots; sees them as `&Tensor`, is shown
//!   `forward(out) expr;`        sees `&Array`s (an optional input: `Option<&Array>`) and the attributes by reference
//!   `saves [self_, result];`    slots; a formula may use no others
//!   `shows { self_sym_sizes: expr };`  further `_saved_*` attributes; the node is `cx`
//!   `grad(g, cx) { input uses [slot, other: optional] => formula, .. }`  formulas of public ops only, so that any order of derivative works
macro_rules! input_type {
    () => { &$crate::tape::Tensor };
    (number) => { &$crate::tape::Tensor };
    (optional) => { Option<&$crate::tape::Tensor> };
}
macro_rules! input_some {
    ($x:ident) => {
        Some($x)
    };
    ($x:ident number) => {
        Some($x)
    };
    ($x:ident optional) => {
        $x
    };
}
macro_rules! input_array {
    ($x:expr) => {
        $x.expect("a required input is there")
    };
    ($x:expr, number) => {
        $x.expect("a required input is there")
    };
    ($x:expr, optional) => {
        $x
    };
}
macro_rules! schema_name {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $schema:literal) => {
        $schema
    };
}
/// `self_` in Rust is `self` for the user; so are other names with a trailing underscore.
pub const fn user_name(rust: &'static str) -> &'static str {
    match rust.as_bytes() {
        [.., b'_'] => rust.split_at(rust.len() - 1).0,
        _ => rust,
    }
}
/// Is the name among the inputs? Then it is saved from there, else from the output of that name.
pub const fn source_of(name: &str, inputs: &[&str], outputs: &[&str]) -> crate::tape::Source {
    let mut i = 0;
    while i < inputs.len() {
        if same(inputs[i], name) {
            return crate::tape::Source::Input(i as u8);
        }
        i += 1;
    }
    let mut i = 0;
    while i < outputs.len() {
        if same(outputs[i], name) {
            return crate::tape::Source::Output(i as u8);
        }
        i += 1;
    }
    panic!("a slot is an input or an output of its op")
}
const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}
/// The static `Info` of an op.
macro_rules! op_info {
    ($node:ident, $name:ident, [$($schema:literal)?], [$($input:ident),*], [$($out:ident),* $(,)?], $visible:expr, $nondiff:expr, [$($save:ident),*], [$($arm:ident [$($use:ident),*])*], $view:expr, [$($state:ident),*]) => {
        const INPUTS: &[&str] = &[$($crate::ops::macros::user_name(stringify!($input))),*];
        const OUTPUTS: &[&str] = &[$($crate::ops::macros::user_name(stringify!($out))),*];
        #[allow(non_camel_case_types, dead_code)]
        enum Input { $($input),* }
        #[allow(non_camel_case_types, dead_code)]
        enum Slot { $($save),* }
        const SAVES: &[(&str, $crate::tape::Source)] = &[$({
            const NAME: &str = $crate::ops::macros::user_name(stringify!($save));
            (NAME, $crate::ops::macros::source_of(NAME, INPUTS, OUTPUTS))
        }),*];
        const ORDER: [u8; SAVES.len()] = $crate::tape::node::pack_order(SAVES);
        pub static INFO: $crate::tape::Info = $crate::tape::Info {
            node: stringify!($node), op: stringify!($name), schema: $crate::ops::macros::schema_name!($name $($schema)?),
            inputs: INPUTS, outputs: OUTPUTS, visible: $visible, nondiff: $nondiff, saves: SAVES, saves_outputs: $crate::tape::node::keeps_outputs(SAVES), order: &ORDER,
            uses: $crate::tape::Uses::of(&[$((Input::$arm as u8, &[$(Slot::$use as u8),*])),*]),
            every: false, view: $view, state: 0 $(| 1 << Input::$state as u32)*, views: &$crate::ops::views::VIEWS,
        };
    };
}
macro_rules! is_there {
    () => {
        false
    };
    ($($t:tt)+) => {
        true
    };
}
macro_rules! slot_value {
    ($cx:ident, $slot:expr) => {
        $cx.saved($slot)?
    };
    ($cx:ident, $slot:expr, optional) => {
        $cx.saved_opt($slot)?
    };
}
macro_rules! op {
    (
        $(#[doc = $doc:literal])*
        $node:ident = fn $name:ident($first:ident $(| $fkind:ident)? $(, $rest:ident $(| $kind:ident)?)* $(; $($attr:ident : $ty:ty $(= $default:expr)?),+ $(,)?)? $(; *, $($kw:ident : $kty:ty $(= $kdefault:expr)?),+ $(,)?)?);
        $(schema $schema:literal;)?
        $(overload $python:ident;)?
        $(inplace $inplace:ident;)?
        $(on [$($place:ident),*];)?
        $(order [$($order:ident),* $(,)?];)?
        $(view $view:tt)?
        $(state [$($state:ident),*];)?
        $(notes { $($note:ident : $nty:ty = $nvalue:expr),* $(,)? };)?
        forward($out:pat) $forward:expr;
        $(saves [$($save:ident),* $(,)?];)?
        $(shows { $($shown:ident : $value:expr),* $(,)? };)?
        grad($g:ident, $cx:ident) { $($arm:ident uses [$($use:ident $(: $uopt:ident)?),* $(,)?] => $formula:expr),* $(,)? }
    ) => {
        $(#[doc = $doc])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name($first: $crate::ops::macros::input_type!($($fkind)?) $(, $rest: $crate::ops::macros::input_type!($($kind)?))* $($(, $attr: $ty)+)? $($(, $kw: $kty)+)?) -> $crate::error::Result<$crate::tape::Tensor> {
            $name::run($crate::tape::How::Fresh, $first $(, $rest)* $($(, $attr)+)? $($(, $kw)+)?)
        }
        $crate::ops::macros::op_inplace! { $($inplace)?; $name [$first: [$($fkind)?] $(, $rest: [$($kind)?])*] [$($($attr: $ty,)+)? $($($kw: $kty,)+)?] }
        pub mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[allow(unused_imports)]
            use $crate::{array::Array, error::Result, kernels::Out, tape::{Attr, Backward, Cx, How, Info, IntoAttr, Node, Tensor}};
            #[derive(Clone)]
            #[allow(non_camel_case_types)]
            pub struct $node { $($(pub $attr: $ty,)+)? $($(pub $kw: $kty,)+)? $($(pub $note: $nty,)*)? }
            $crate::ops::macros::op_info! {
                $node, $name, [$($schema)?], [$first $(, $rest)*], [result], 1, 0, [$($($save),*)?], [$($arm [$($use),*])*], $crate::ops::macros::is_there!($($view)?), [$($($state),*)?]
            }
            #[allow(clippy::too_many_arguments)]
            pub fn run(how: How<'_>, $first: $crate::ops::macros::input_type!($($fkind)?) $(, $rest: $crate::ops::macros::input_type!($($kind)?))* $($(, $attr: $ty)+)? $($(, $kw: $kty)+)?) -> Result<Tensor> {
                let op = $node { $($($note: $nvalue,)*)? $($($attr,)+)? $($($kw,)+)? };
                #[allow(unused_variables)]
                let $node { $($($attr,)+)? $($($kw,)+)? $($($note,)*)? } = &op;
                $crate::tape::record(
                    how, &INFO, &[$crate::ops::macros::input_some!($first $($fkind)?) $(, $crate::ops::macros::input_some!($rest $($kind)?))*],
                    &|x: &[Option<&Array>], $out: Out<'_>| {
                        let &[$first $(, $rest)*] = x else { unreachable!("as many arrays as inputs") };
                        let $first = $crate::ops::macros::input_array!($first $(, $fkind)?);
                        $(let $rest = $crate::ops::macros::input_array!($rest $(, $kind)?);)*
                        $forward
                    },
                    &|| Box::new(op.clone()),
                )
            }
            impl Backward for $node {
                fn info(&self) -> &'static Info { &INFO }
                #[allow(unused_variables, unused_mut, unreachable_code)]
                fn backward(&self, g: &[Option<Tensor>], $cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
                    let Some($g) = &g[0] else { return Ok(()) };
                    let $node { $($($attr,)+)? $($($kw,)+)? $($($note,)*)? } = self;
                    $(if $cx.needs(Input::$arm as usize) {
                        $(let $use = &$crate::ops::macros::slot_value!($cx, Slot::$use as usize $(, $uopt)?);)*
                        let grad: Result<Tensor> = $formula;
                        grads[Input::$arm as usize] = Some(grad?);
                    })*
                    Ok(())
                }
                #[allow(unused_variables, unused_mut)]
                fn attrs(&self, $cx: &Node) -> Vec<(&'static str, Attr)> {
                    #[allow(unused_variables)]
                    let $node { $($($attr,)+)? $($($kw,)+)? $($($note,)*)? } = self;
                    vec![$($((stringify!($attr), $attr.attr()),)+)? $($((stringify!($kw), $kw.attr()),)+)? $($((stringify!($note), $note.attr()),)*)? $($((stringify!($shown), $value),)*)?]
                }
                fn params(&self) -> $crate::tape::dispatch::Named {
                    vec![$($((stringify!($attr), self.$attr.arg()),)+)? $($((stringify!($kw), self.$kw.arg()),)+)?]
                }
            }
            #[cfg(feature = "python")]
            const RETURNS: &str = "Tensor";
            #[cfg(feature = "python")]
            $crate::py::entry::expose! {
                [$($doc),*] $node [$($inplace)?] $name [$($python)?] [$($($place),*)?] [how] run; [$first [$($fkind)?] $(, $rest [$($kind)?])*]
                [$($($attr: $ty $(= $default)?),+)?] [$($($kw: $kty $(= $kdefault)?),+)?] $(order [$($order),*])?
            }
        }
    };
}
macro_rules! op_inplace {
    (; $($none:tt)*) => {};
    ($inplace:ident; $name:ident [$($input:ident: [$($kind:ident)?]),+] [$($attr:ident: $ty:ty,)*]) => {
        #[doc = concat!("In-place version of [`", stringify!($name), "`]: writes into its first input and bumps its version.")]
        #[allow(clippy::too_many_arguments)]
        pub fn $inplace($($input: $crate::ops::macros::input_type!($($kind)?),)+ $($attr: $ty,)*) -> $crate::error::Result<$crate::tape::Tensor> {
            $name::run($crate::tape::How::InPlace, $($input,)+ $($attr,)*)
        }
    };
}
/// As `op!`, with several outputs: `-> [values, indices nondiff]`; outputs named after `hidden` are for backward alone. `forward` gives a
/// list of arrays; in formulas `g` is `&[Option<Tensor>]`, slots are `Option<Tensor>`, and a formula gives `Result<Option<Tensor>>`.
/// Where the gradients are found together, `together(g, cx; slot, ..) { input uses [slot], .. } => formula;` stands for `grad`: the slots
/// named are then functions, `slot()?`, and the formula gives `Result<Vec<Option<Tensor>>>`, one for each input in the order in which they are named.
/// `named "max"` makes Python return torch's named tuple `return_types.max`.
macro_rules! op_many {
    (
        $(#[doc = $doc:literal])*
        $node:ident = fn $name:ident($first:ident $(| $fkind:ident)? $(, $rest:ident $(| $kind:ident)?)* $(; $($attr:ident : $ty:ty $(= $default:expr)?),+ $(,)?)? $(; *, $($kw:ident : $kty:ty $(= $kdefault:expr)?),+ $(,)?)?)
            -> [$($o:ident),* $(; nondiff $($nd:ident),+)? $(; hidden $($hidden:ident),+)?];
        $(schema $schema:literal;)?
        $(overload $python:ident;)?
        $(named $named:literal;)?
        $(on [$($place:ident),*];)?
        $(order [$($order:ident),* $(,)?];)?
        $(view $view:tt)?
        $(state [$($state:ident),*];)?
        forward $forward:expr;
        $(saves [$($save:ident),* $(,)?];)?
        $(shows { $($shown:ident : $value:expr),* $(,)? };)?
        $(grad($g:ident, $cx:ident) { $($arm:ident uses [$($use:ident),* $(,)?] => $formula:expr),* $(,)? })?
        $(together($all_g:ident, $all_cx:ident; $($slot:ident),* $(,)?) { $($of:ident uses [$($of_use:ident),* $(,)?]),* $(,)? } => $all:expr;)?
    ) => {
        $(#[doc = $doc])*
        #[allow(clippy::too_many_arguments)]
        pub fn $name($first: $crate::ops::macros::input_type!($($fkind)?) $(, $rest: $crate::ops::macros::input_type!($($kind)?))* $($(, $attr: $ty)+)? $($(, $kw: $kty)+)?) -> $crate::error::Result<$crate::ops::Tensors> {
            $name::run($first $(, $rest)* $($(, $attr)+)? $($(, $kw)+)?)
        }
        pub mod $name {
            #[allow(unused_imports)]
            use super::*;
            #[allow(unused_imports)]
            use $crate::{array::Array, error::Result, ops::Tensors, tape::{Attr, Backward, Cx, Info, IntoAttr, Node, Tensor}};
            #[derive(Clone)]
            pub struct $node { $($(pub $attr: $ty,)+)? $($(pub $kw: $kty,)+)? }
            #[allow(non_camel_case_types, dead_code)]
            enum Output { $($o,)* $($($nd,)+)? $($($hidden,)+)? }
            $crate::ops::macros::op_info! {
                $node, $name, [$($schema)?], [$first $(, $rest)*], [$($o,)* $($($nd,)+)? $($($hidden),+)?],
                <[&str]>::len(&[$(stringify!($o),)* $($(stringify!($nd),)+)?]), 0 $($(| 1 << Output::$nd as u32)+)?,
                [$($($save),*)?], [$($($arm [$($use),*])*)? $($($of [$($of_use),*])*)?], $crate::ops::macros::is_there!($($view)?), [$($($state),*)?]
            }
            #[allow(clippy::too_many_arguments)]
            pub fn run($first: $crate::ops::macros::input_type!($($fkind)?) $(, $rest: $crate::ops::macros::input_type!($($kind)?))* $($(, $attr: $ty)+)? $($(, $kw: $kty)+)?) -> Result<Tensors> {
                let op = $node { $($($attr,)+)? $($($kw,)+)? };
                #[allow(unused_variables)]
                let $node { $($($attr,)+)? $($($kw,)+)? } = &op;
                $crate::tape::record_many(
                    &INFO, &[$crate::ops::macros::input_some!($first $($fkind)?) $(, $crate::ops::macros::input_some!($rest $($kind)?))*],
                    &|x: &[Option<&Array>]| {
                        let &[$first $(, $rest)*] = x else { unreachable!("as many arrays as inputs") };
                        let $first = $crate::ops::macros::input_array!($first $(, $fkind)?);
                        $(let $rest = $crate::ops::macros::input_array!($rest $(, $kind)?);)*
                        $forward
                    },
                    &|| Box::new(op.clone()),
                )
            }
            impl Backward for $node {
                fn info(&self) -> &'static Info { &INFO }
                #[allow(unused_variables, unused_mut, unreachable_code)]
                fn backward(&self, _g: &[Option<Tensor>], _cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
                    let $node { $($($attr,)+)? $($($kw,)+)? } = self;
                    $(
                        let ($g, $cx) = (_g, _cx);
                        $(if $cx.needs(Input::$arm as usize) {
                            $(let $use = &$cx.saved_opt(Slot::$use as usize)?;)*
                            let grad: Result<Option<Tensor>> = $formula;
                            grads[Input::$arm as usize] = grad?;
                        })*
                    )?
                    $(
                        let ($all_g, $all_cx) = (_g, _cx);
                        $(let $slot = || $all_cx.saved_opt(Slot::$slot as usize);)*
                        let all: Result<Vec<Option<Tensor>>> = $all;
                        for (at, grad) in [$(Input::$of as usize),*].into_iter().zip(all?) {
                            grads[at] = grad;
                        }
                    )?
                    Ok(())
                }
                #[allow(unused_variables, unused_mut)]
                fn attrs(&self, _node: &Node) -> Vec<(&'static str, Attr)> {
                    #[allow(unused_variables)]
                    let $node { $($($attr,)+)? $($($kw,)+)? } = self;
                    $(let $cx = _node;)?
                    $(let $all_cx = _node;)?
                    vec![$($((stringify!($attr), $attr.attr()),)+)? $($((stringify!($kw), $kw.attr()),)+)? $($((stringify!($shown), $value),)*)?]
                }
                fn params(&self) -> $crate::tape::dispatch::Named {
                    vec![$($((stringify!($attr), self.$attr.arg()),)+)? $($((stringify!($kw), self.$kw.arg()),)+)?]
                }
            }
            #[cfg(feature = "python")]
            const RETURNS: &str = "Tensors";
            #[cfg(feature = "python")]
            $crate::py::entry::expose! {
                [$($doc),*] $node [] $name [$($python)?] [$($($place),*)?] [] run; [$first [$($fkind)?] $(, $rest [$($kind)?])*]
                [$($($attr: $ty $(= $default)?),+)?] [$($($kw: $kty $(= $kdefault)?),+)?] $(named $named)? $(order [$($order),*])?
            }
        }
    };
}
/// A function that records nothing of its own (a composition of ops, or one without derivative): same arguments, documentation and
/// registration, any result that `py` can return. Besides tensors it may take `tensors: Vec<Tensor>` as an attribute.
/// `schema "isnan"` says that it is a kernel of its own, which dispatch modes see under that name (with `view`, as a view of its first
/// input); without it they see the ops of which it is composed. `records CAT` names the `Info` of a node written by hand.
macro_rules! function {
    (
        $(#[doc = $doc:literal])*
        fn $name:ident($($input:ident $(| $kind:ident)?),* $(; $($attr:ident : $ty:ty $(= $default:expr)?),+ $(,)?)? $(; *, $($kw:ident : $kty:ty $(= $kdefault:expr)?),+ $(,)?)?) -> $ret:ty;
        $(overload $python:ident;)?
        $(on [$($place:ident),*];)?
        $(order [$($order:ident),* $(,)?];)?
        $(named $named:literal;)?
        $(schema $schema:literal;)?
        $(records $records:ident;)?
        $(view $view:tt)?
        $body:block
    ) => {
        $(#[doc = $doc])*
        // Some arguments are all used up when they are read (`device`, `layout`), or are hints (`non_blocking`).
        #[allow(clippy::too_many_arguments, unused_variables)]
        pub fn $name($($input: $crate::ops::macros::input_type!($($kind)?),)* $($($attr: $ty,)+)? $($($kw: $kty,)+)?) -> $crate::error::Result<$ret> {
            $crate::ops::macros::intercepted! {
                [$($schema)?] $name $ret [$($input [$($kind)?]),*] [$($($attr)+)? $($($kw)+)?]
            }
            $body
        }
        pub mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::ops::macros::function_info! { [$($schema)?] [$($records)?] $name [$($input),*] [$($view)?] }
            #[cfg(feature = "python")]
            pub struct Function;
            #[cfg(feature = "python")]
            const RETURNS: &str = stringify!($ret);
            #[cfg(feature = "python")]
            $crate::py::entry::expose! {
                [$($doc),*] Function [] $name [$($python)?] [$($($place),*)?] [] super::$name; [$($input [$($kind)?]),*]
                [$($($attr: $ty $(= $default)?),+)?] [$($($kw: $kty $(= $kdefault)?),+)?] $(named $named)? $(order [$($order),*])?
            }
        }
    };
}
/// What is known of a function that is a kernel of its own: its schema, for dispatch modes.
macro_rules! function_info {
    ([] [] $($none:tt)*) => {
        #[cfg(feature = "python")]
        const KERNEL: Option<&'static $crate::tape::Info> = None;
    };
    ([] [$records:ident] $($none:tt)*) => {
        #[cfg(feature = "python")]
        const KERNEL: Option<&'static $crate::tape::Info> = Some(&$records);
    };
    ([$schema:literal] [] $name:ident [$($input:ident),*] [$($view:tt)?]) => {
        pub static INFO: $crate::tape::Info = $crate::tape::Info {
            node: "", op: stringify!($name), schema: $schema, inputs: &[$($crate::ops::macros::user_name(stringify!($input))),*],
            outputs: &["result"], visible: 1, nondiff: 1, saves: &[], saves_outputs: false, order: &[], uses: $crate::tape::Uses::NONE, every: false,
            view: $crate::ops::macros::is_there!($($view)?), state: 0, views: &$crate::ops::views::VIEWS,
        };
        #[cfg(feature = "python")]
        const KERNEL: Option<&'static $crate::tape::Info> = Some(&INFO);
    };
}
/// Before the body of a function that is a kernel of its own: whoever intercepts operations is asked.
macro_rules! intercepted {
    ([] $($none:tt)*) => {};
    ([$schema:literal] $name:ident $ret:ty [$($input:ident [$($kind:ident)?]),*] [$($param:ident)*]) => {
        if $crate::tape::mode::dispatching()
            && let Some(got) = $crate::tape::dispatch::function(
                &$name::INFO,
                &[$($crate::ops::macros::input_some!($input $($kind)?)),*],
                &|| vec![$((stringify!($param), $crate::tape::IntoAttr::arg(&$param))),*],
            )?
        {
            return <$ret as $crate::tape::dispatch::FromGot>::from_got(got, $schema);
        }
    };
}
pub(crate) use {
    function, function_info, input_array, input_some, input_type, intercepted, is_there, op, op_info, op_inplace, op_many, schema_name,
    slot_value,
};
