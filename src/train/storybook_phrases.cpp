#include "train/storybook_content.h"

namespace mr::train {

const std::string_view kStorybookPhrases = R"(
@rule story
{opening} {plot}

@rule plot
{plot_learn}
{plot_fear}
{plot_wonder}
{plot_grow}
{plot_lost}
{plot_gift}
{plot_broken}
{plot_prize}
{plot_friend}
{plot_quarrel}
{plot_rescue}

@rule opening
12* Once upon a time, {home}, there lived {who}. {habit} {hero.pets}
6* Once upon a time, there was {who} who lived {home}. {habit} {hero.pets}
2* Long ago, {home}, there lived {who}. {habit} {hero.pets}
2* There once was {who} who lived {home}. {habit} {hero.pets}
1* Far, far away, {home}, lived {who}. {habit} {hero.pets}

@rule habit
4* -
{hero} liked [rainy|sunny|snowy|windy|foggy|cold] [days|mornings|evenings] best.
{hero} always wore a [red|blue|green|yellow|purple] [hat|scarf|coat].
{hero} said good morning to every [bird|tree|cloud|bee|cow|flower].
{hero} liked to [sing|hum|skip|whisper|read] [in bed|in the rain|before breakfast].
{hero} knew the name of every [flower|bird|tree|star|beetle].
{hero} could [laugh|run|hum|giggle|hop] longer than anyone.
{hero} had a pocket full of [string|crumbs|pebbles|buttons|acorns|ribbons].

@rule one_day
One day
One [bright|gray|windy|misty|chilly] morning
One [warm|quiet|golden|sleepy] afternoon

@rule meet
3* Just then, a {helper_is} {place.help} came by.
2* Along came a {helper_is} {place.help}, who stopped to listen.
3* Close by, a {helper_is} {place.help} {helper.doing}.
2* A {helper_is} {place.help} {helper.doing} and saw {hero.them}.

@rule helper_is
kind
wise
friendly
gentle
plump
cheerful
quiet
tall
very old
sleepy
good-hearted
round

@rule talk
2* "What is the matter?" asked the {helper}, and {hero} told {helper.them} everything.
2* "Why do you look so [sad|glum|worried]?" asked the {helper}. {hero} told {helper.them}.
2* "Tell me what is wrong," said the {helper} [softly|kindly|gently], and {hero} did.
"Oh my, what a long face!" said the {helper}. So {hero} explained.
2* {hero} told {helper.them} the whole story.
{hero} [sniffed|sighed|sat down] and told {helper.them} all about it.

@rule despair
"I will never do it," [sighed|whispered|sniffed] {hero}.
"It is no use," [sighed|whispered|sniffed] {hero}.
"This is too hard for me," said {hero}.
{hero} sat down and [cried a little|sighed].
A [big|round|hot] tear rolled down {hero}'s cheek.
{hero} felt [small and sad|very tired|like giving up].

@rule sorrow
A [big|round|hot] tear rolled down {hero}'s cheek.
{hero} felt [small and sad|very worried|like crying].
"Oh dear, oh dear," [sighed|whispered|sniffed] {hero}.
"What shall I do now?" [sighed|whispered|sniffed] {hero}.

@rule brave_up
{hero} [took a deep breath|nodded|stood up straight].
{hero} [thought about it|wiped {hero.their} eyes].
"I will try," said {hero}.
"All right," said {hero}, "one more time."

@rule hooray
"I did it!" [shouted|cried|laughed] {hero}.
"Hooray!" [shouted|cried|laughed] {hero}.
"Look! Look at me!" [shouted|cried|laughed] {hero}.
{hero} [laughed out loud|jumped for joy|danced in a circle|grinned from ear to ear].
{hero} felt [as light as a feather|warm all over|ten feet tall|like a king|as proud as a peacock].

@rule glad
{hero} [laughed out loud|jumped for joy|danced in a circle|grinned from ear to ear].
{hero} felt [as light as a feather|warm all over|happier than ever].
{hero}'s heart [sang|danced|felt warm and full].

@rule thanks
2* "Thank you, [dear|kind|good] {helper}!" said {hero}.
{hero} gave the {helper} {treat}.
{hero} shared {treat} with the {helper}.
{hero} gave the {helper} a big hug.
The {helper} only [winked|smiled|bowed].

@rule treat
a [warm honey bun|slice of plum cake|ginger cookie|cup of cocoa|bowl of berries|cheese sandwich]
a [daisy chain|smooth white stone|bunch of violets|ripe red apple|paper star|shiny chestnut]
some [sweet cherries|roasted nuts|fresh bread|blueberry pie|lemonade|pancakes]

@rule bedtime
4* -
3* That night, {hero} dreamed of {dream}.
1* The end.
1* And everyone around {place.the} [slept well|had sweet dreams].
1* "What a [good|wonderful|lovely] day," said {hero}.

@rule dream
[silver|golden|flying|singing|paper|purple] [fish|boats|birds|horses|kites|whales|bears]
a [castle|ship|garden|house|train|mountain] made of [cake|clouds|moonlight|glass|feathers|books]
[dancing|laughing|tiny|shy] [dragons|stars|snowmen|elephants|teapots|lanterns]

)";

}  // namespace mr::train
