#include "lab/story/storybook_content.h"

namespace mr::story {

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

# What is told of the hero: some of it comes again at the very end, whatever happened in between.
@rule habit
4* {keep=no_keep}
{hero} liked [rainy|sunny|snowy|windy|foggy|cold|hot|cloudy|frosty|misty]
  [days|mornings|evenings|nights] best. {keep=no_keep}
{hero} liked to [sing|hum|skip|whisper|read|draw|yodel|doze|daydream]
  [in bed|in the rain|before breakfast|on the stairs|under the table|by the stove]. {keep=no_keep}
{hero} knew the name of every [flower|bird|tree|star|beetle|butterfly|cloud|mountain|fish|street|
  king|herb|moth|ship|cheese|berry|knot]. {keep=no_keep}
{hero} could [laugh|run|hum|giggle|hop|whistle|sit still|stare|dance|stand on tiptoe|talk|splash|
  keep a secret] longer than anyone. {keep=no_keep}
4* {hero} {keep=keepsake}.

@table no_keep: says | again | night={plain_night}
- | Nobody saw

@table keepsake: says | again | night={keep_night}
always wore a red hat | And the red hat hung over the chair
always wore a blue hat | And the blue hat hung over the chair
always wore a green hat | And the green hat hung over the chair
always wore a yellow hat | And the yellow hat hung over the chair
always wore a purple hat | And the purple hat hung over the chair
always wore a pink hat | And the pink hat hung over the chair
always wore a red scarf | And the red scarf hung over the chair
always wore a blue scarf | And the blue scarf hung over the chair
always wore a green scarf | And the green scarf hung over the chair
always wore a yellow scarf | And the yellow scarf hung over the chair
always wore a striped scarf | And the striped scarf hung over the chair
always wore a spotted scarf | And the spotted scarf hung over the chair
always wore a red coat | And the red coat hung over the chair
always wore a blue coat | And the blue coat hung over the chair
always wore a green coat | And the green coat hung over the chair
always wore a purple coat | And the purple coat hung over the chair
always wore a patched coat | And the patched coat hung over the chair
always wore a velvet coat | And the velvet coat hung over the chair
always wore a woolen cap | And the woolen cap hung over the chair
always wore a checkered vest | And the checkered vest hung over the chair
always wore a long gray cloak | And the long gray cloak hung over the chair
had a pocket full of pebbles | One of the pebbles lay under the pillow
had a pocket full of buttons | One of the buttons lay under the pillow
had a pocket full of acorns | One of the acorns lay under the pillow
had a pocket full of ribbons | One of the ribbons lay under the pillow
had a pocket full of marbles | One of the marbles lay under the pillow
had a pocket full of shells | One of the shells lay under the pillow
had a pocket full of feathers | One of the feathers lay under the pillow
had a pocket full of walnuts | One of the walnuts lay under the pillow
had a pocket full of keys | One of the keys lay under the pillow
had a pocket full of coins | One of the coins lay under the pillow
had a pocket full of seeds | One of the seeds lay under the pillow
had a pocket full of pencils | One of the pencils lay under the pillow
had a pocket full of cherry stones | One of the cherry stones lay under the pillow
had a pocket full of corks | One of the corks lay under the pillow
had a pocket full of stamps | One of the stamps lay under the pillow
had a pocket full of beads | One of the beads lay under the pillow
said good morning to every bird | And every bird got a good night as well
said good morning to every tree | And every tree got a good night as well
said good morning to every cloud | And every cloud got a good night as well
said good morning to every bee | And every bee got a good night as well
said good morning to every cow | And every cow got a good night as well
said good morning to every flower | And every flower got a good night as well
said good morning to every snail | And every snail got a good night as well
said good morning to every horse | And every horse got a good night as well
said good morning to every chimney | And every chimney got a good night as well
said good morning to every lamppost | And every lamppost got a good night as well
said good morning to every goose | And every goose got a good night as well
said good morning to every spider | And every spider got a good night as well
said good morning to every stone | And every stone got a good night as well
said good morning to every sheep | And every sheep got a good night as well
said good morning to every gate | And every gate got a good night as well
said good morning to every neighbor | And every neighbor got a good night as well
said good morning to every duck | And every duck got a good night as well
said good morning to every puddle | And every puddle got a good night as well

@rule one_day
One day
One [bright|gray|windy|misty|chilly|frosty|rainy|pale|silent] morning
One [warm|quiet|golden|sleepy|drowsy|stormy|dusty|breezy] afternoon
One [clear|purple|cool|moonlit|mild] evening

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
tiny
patient
curious
white-haired
jolly
clever
humble
thin
soft-spoken
busy
sunburned
merry

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
a [jar of jam|pot of tea|baked potato|bag of hazelnuts|pear tart|cinnamon roll|wild pear|clay whistle]
a [carved button|pressed fern|peacock feather|ball of blue wool|poem|map of the stars|candle stub]
some [sweet cherries|roasted nuts|fresh bread|blueberry pie|lemonade|pancakes|warm milk|dried figs]
some [pumpkin seeds|butter cookies|grapes|candied ginger|hot soup|sugared almonds|wild garlic]

@rule bedtime
{keep.night}

@rule plain_night
4* -
{good_night}

@rule keep_night
3* -
2* {good_night}
3* {keep.again}.

@rule good_night
3* That night, {hero} dreamed of {dream}.
1* The end.
1* And everyone around {place.the} [slept well|had sweet dreams].
1* "What a [good|wonderful|lovely] day," said {hero}.

@rule dream
[silver|golden|flying|singing|paper|purple|glowing|velvet|whispering|upside-down]
  [fish|boats|birds|horses|kites|whales|bears|umbrellas|islands|rivers|foxes|violins]
a [castle|ship|garden|house|train|mountain|bridge|palace|tower|city]
  made of [cake|clouds|moonlight|glass|feathers|books|pancakes|snow|music|buttons]
[dancing|laughing|tiny|shy|polite|juggling|hungry|yawning]
  [dragons|stars|snowmen|elephants|teapots|lanterns|giants|turnips|pirates|pianos|penguins|clocks]

)";

}  // namespace mr::story
